"""One attempt, from the lease to how it ended.

Nothing here writes to the queue, except that a handler's own transaction may hold the job's completion. The
handler's exceptions - ``sys.exit`` included - become an outcome; an exception that leaves this file is a bug of ours.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, assert_never, cast

from jfast_sync import context
from jfast_sync.job import Job, Lease
from jfast_sync.observers import JobEvent, Observers
from jfast_sync.outcome import Bury, Done, Outcome, Policy, Release, Retry
from jfast_sync.redact import error_text
from jfast_sync.worker.attempt import Attempt, Committed, Ended, Lost, Report, Stop, Unknown
from jfast_sync.worker.child import ChildLauncher
from jfast_sync.worker.options import WorkerOptions
from jfast_sync.worker.transaction import NotBegun, Transactions

if TYPE_CHECKING:
    from jfast_sync.core import JFast
    from jfast_sync.tasks.registry import Registry
    from jfast_sync.tasks.spec import Task
    from jfast_sync.telemetry import Processing, Telemetry

__all__ = ["Executor"]

log = logging.getLogger("jfast_sync.worker")


#: A job that takes the whole machine or container with it leaves nobody to tell of its child's death.
_LAPSES_BEYOND: Final = 10
_VANISHING: Final = (
    "worker vanished: {} starts ended with a lapsed lease, the last of them alone; what runs it is killed or cut off"
)


class Executor:
    """Knows everything one attempt needs.

    Args:
        tasks: the declared tasks.
        transactions: opens and commits the handlers' transactions.
        app: what handlers get as TaskContext.
        options: the worker's.
        observers: told of start, success, failure and death.
        policy: the configuration's; a task's own options go over it.
        child: runs a job alone in a process of its own; None where the app cannot be built again there.
        is_alone: this is such a process.
    """

    def __init__(
        self,
        tasks: Registry,
        transactions: Transactions,
        app: object,
        options: WorkerOptions,
        *,
        observers: Observers,
        policy: Policy,
        child: ChildLauncher | None = None,
        is_alone: bool = False,
    ) -> None:
        self._tasks = tasks
        self._transactions = transactions
        self._app = app
        self._options = options
        self._observers = observers
        self._policy = policy
        self._child = child
        self._is_alone = is_alone
        self._telemetry: Telemetry | None = getattr(app, "telemetry", None)
        self._policies: dict[int, tuple[Task, Policy]] = {}

    def begin(self, lease: Lease) -> Attempt:
        """Look up the task and its options."""
        task = self._tasks.find(lease.job.task)
        timeout = self._options.job_timeout if task is None or task.timeout is None else task.timeout
        return Attempt(lease, task, self._policy_of(task), timeout=timeout, patience=self._options.patience)

    def execute(self, attempt: Attempt) -> Report:
        """Run the attempt in a context of its own: nothing of it is left for the next job on this thread."""
        return copy_context().run(self._execute, attempt)

    def _execute(self, attempt: Attempt) -> Report:
        job = attempt.lease.job
        app = context.bind_app(cast("JFast", self._app)) if self._app is not None else nullcontext()
        with context.bind(job.origin), context.bind_job(attempt.running), app, self._traced(job) as span:
            self._observers.tell("start", JobEvent(job=job))
            ended, skipped, error = self._ended(attempt)
            if span is not None:
                span.ended(*_traced_end(ended, skipped), error)
            if attempt.conclude(ended):
                self._announce(attempt, ended, skipped, error)
        return Report(attempt.lease, ended, skipped)

    def _traced(self, job: Job) -> AbstractContextManager[Processing | None]:
        if self._telemetry is None:
            return nullcontext()
        return self._telemetry.joined(job) if self._is_alone else self._telemetry.processing(job)

    def _ended(self, attempt: Attempt) -> tuple[Ended, bool, BaseException | None]:
        if attempt.task is None:
            try:
                self._tasks.get(attempt.lease.job.task)
            except LookupError as exc:
                return Bury(error_text(exc)), False, exc
        if attempt.lease.lapses >= attempt.lease.max_attempts + _LAPSES_BEYOND:
            return Bury(_VANISHING.format(attempt.lease.lapses)), False, None
        if attempt.lease.alone and not self._is_alone:
            if self._child is not None and self._child.can_run(attempt):
                return *self._child.run(attempt), None
            log.warning(
                "job %s (%s) lapsed before and should run alone, but this app cannot be built again in a process of "
                "its own: if it kills its process it takes this worker with it",
                attempt.lease.job.id,
                attempt.lease.job.task,
            )
        return self._perform(attempt)

    def _perform(self, attempt: Attempt) -> tuple[Ended, bool, BaseException | None]:
        ended: Ended = Done()
        skipped = False
        try:
            ended, skipped = self._call(attempt, cast("Task", attempt.task))
        except NotBegun as held:
            waited = attempt.stop in (None, Stop.TIMEOUT)  # the time went into waiting, not into the job
            return held.outcome if waited else attempt.verdict(held), False, held.__cause__
        except BaseException as exc:  # SystemExit and Interrupt too: they end the attempt, not the thread
            return attempt.verdict(exc), False, exc
        if isinstance(ended, Done):
            ended = attempt.verdict(None)
        return ended, skipped, None

    def _call(self, attempt: Attempt, task: Task) -> tuple[Outcome | Committed | Unknown, bool]:
        key = task.idempotency_key(attempt.lease.job.payload) if task.idempotent_on is not None else None

        def handler(session: Any = None) -> None:
            attempt.call(lambda: task.call(attempt.running, session if task.takes_session else None, self._app))

        if not task.takes_session and key is None:
            handler()
            return Done(), False
        return self._transactions.run(attempt, key, handler)

    def _policy_of(self, task: Task | None) -> Policy:
        if task is None:
            return self._policy
        known = self._policies.get(id(task))
        if known is None or known[0] is not task:
            known = self._policies[id(task)] = (task, task.policy(self._policy))
        return known[1]

    def _announce(self, attempt: Attempt, ended: Ended, skipped: bool, error: BaseException | None) -> None:
        seconds = time.monotonic() - attempt.started
        announce(self._observers, attempt, ended, error, seconds)
        log_end(attempt, ended, seconds, skipped=skipped)


def log_end(attempt: Attempt, ended: Ended, seconds: float, *, skipped: bool = False) -> None:
    """Log the one line every attempt ends with."""
    level = _level(ended)
    if log.isEnabledFor(level):
        log.log(level, "%s %s %s", attempt.lease.job.task, attempt.lease.job.id, _told(ended, skipped, seconds))


def _level(ended: Ended) -> int:
    match ended:
        case Bury():
            return logging.ERROR
        case Lost() | Retry(refund=False):
            return logging.WARNING
        case _:
            return logging.INFO


def announce(observers: Observers, attempt: Attempt, ended: Ended, error: BaseException | None, seconds: float) -> None:
    """Tell the observers how an attempt ended; a release, a snooze and a lost lease are not their business."""
    event = JobEvent(job=attempt.lease.job, seconds=seconds)
    match ended:
        case Done() | Committed():
            observers.tell("success", event)
        case Retry(refund=False, error=text):
            observers.tell("failure", JobEvent(job=event.job, error=text, exception=error, seconds=seconds))
        case Bury(error=text):
            failed = JobEvent(job=event.job, error=text, exception=error, seconds=seconds)
            observers.tell("failure", failed)
            observers.tell("dead", failed)
        case _:
            pass


def _traced_end(ended: Ended, skipped: bool) -> tuple[str, str | None]:
    """Say for its span how an attempt ended: in a word, and why it failed (None: it did not)."""
    match ended:
        case Done() | Committed():
            return "skipped" if skipped else "done", None
        case Retry(refund=refund, error=error):
            return ("put off", None) if refund else ("retry", error)
        case Bury(error=error):
            return "dead", error
        case _:
            return type(ended).__name__.lower(), None


def _told(ended: Ended, skipped: bool, seconds: float) -> str:
    """Say in words how an attempt ended, for the log."""
    took = f"{seconds * 1000:.0f} ms"
    match ended:
        case Done() | Committed():
            return f"skipped in {took}: its key was claimed before" if skipped else f"done in {took}"
        case Retry(refund=True, error=error):
            return f"put off after {took}, its attempt not counted: {error}"
        case Retry(delay=delay, error=error):
            return f"failed after {took}, to be tried again in {delay:g} s: {error}"
        case Bury(error=error):
            return f"failed for good after {took}: {error}"
        case Release():
            return f"interrupted after {took} and released"
        case Unknown():
            return f"committed after {took} without a reply, to be looked up"
        case Lost():
            return f"ended after {took}, but is another worker's by now; its writes were rolled back"
        case _:
            assert_never(ended)
