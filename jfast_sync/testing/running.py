"""Jobs run in the test's own thread, by the worker's own code."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from jfast_sync import adapters
from jfast_sync.control import Control
from jfast_sync.core import JFast
from jfast_sync.errors import LeaseLostError
from jfast_sync.job import Lease
from jfast_sync.observers import JobEvent, Moment, Observers
from jfast_sync.outcome import Bury, Done, Retry, Settlement
from jfast_sync.ports import Queue, Selection, Settled, SharesTransaction
from jfast_sync.sql.session import Loud, on_commit
from jfast_sync.worker import WorkerOptions
from jfast_sync.worker.attempt import Attempt, Committed, Ended, Lost, Report, Unknown
from jfast_sync.worker.execute import Executor
from jfast_sync.worker.transaction import Transactions

__all__ = ["Drained", "drain", "inline"]

_ENDLESS: Final = 10_000


@dataclass(slots=True)
class Drained:
    """What :func:`drain` did: attempts that succeeded, were skipped as duplicates, will be retried, or died."""

    done: int = 0
    skipped: int = 0
    retried: int = 0
    dead: int = 0


def drain(jf: JFast, *, raise_errors: bool = True, max_jobs: int = _ENDLESS) -> Drained:
    """Run every job that is due, in this thread, until none is; jobs that these enqueue are run too.

    A failed attempt is written as in production - the job waits for its retry, or is a dead letter - and then its
    exception is raised. Delayed jobs and retries stay where they are: move a :class:`FakeClock` and drain again.

    Args:
        jf: the app.
        raise_errors: raise what a handler raised, and for an unknown task; ``Retry``, ``Snooze`` and ``Cancel`` are
            never raised. With False everything due is run whatever fails.
        max_jobs: starts after which the test fails, because jobs that enqueue each other would never end.

    Raises:
        AssertionError: ``max_jobs`` were started and more are due.
        Exception: what a handler raised.
    """
    jf.setup()
    run = _Run(jf)
    try:
        for _ in range(max_jobs):
            leases = run.queue.claim(1, 0.0, _EVERYTHING)
            if not leases and jf.relaying.run_once():  # the outbox had jobs for a queue elsewhere
                leases = run.queue.claim(1, 0.0, _EVERYTHING)
            if not leases:
                return run.counts
            error = run.one(leases[0])
            if error is not None and raise_errors:
                raise error
    finally:
        run.record()
    if run.queue.stats().ready:
        raise AssertionError(f"{max_jobs} jobs were run and more are due: do they enqueue each other without end?")
    return run.counts


_EVERYTHING: Final = Selection(worker="test")


class _Told(Observers):
    """Passes everything on to the app's observers and keeps what a handler raised."""

    def __init__(self, app: Observers) -> None:
        super().__init__()
        self._app = app
        self._error: BaseException | None = None

    def tell(self, moment: Moment, event: JobEvent) -> None:
        if moment == "failure":
            self._error = event.exception
        self._app.tell(moment, event)

    def take(self) -> BaseException | None:
        error, self._error = self._error, None
        return error


class _Run:
    """Runs single jobs as a worker's thread does, and writes how they ended at once."""

    def __init__(self, jf: JFast) -> None:
        self.queue: Queue = jf.queue.backend
        self.counts = Drained()
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._told = _Told(jf.observers)
        self._transactions = Transactions(self.queue, jf.database)
        self._executor = Executor(
            jf.tasks,
            self._transactions,
            jf,
            WorkerOptions(threads=1, job_timeout=0.0),
            observers=self._told,
            policy=adapters.policy(jf.config.queue),
        )

    def one(self, lease: Lease) -> BaseException | None:
        """Run one job to its end; return what the handler raised, unless that only steers the job."""
        attempt: Attempt = self._executor.begin(lease)
        report: Report = self._executor.execute(attempt)
        attempt.end()
        self._write(lease, report.ended, report.skipped)
        error = self._told.take()
        return None if isinstance(error, Control) else error

    def _write(self, lease: Lease, ended: Ended, skipped: bool) -> None:
        if isinstance(ended, Unknown):
            ended = Committed() if self._transactions.committed(lease) else ended.otherwise
        match ended:
            case Lost():
                raise LeaseLostError(f"job {lease.job.id} was taken by somebody else while it ran")
            case Committed():
                pass
            case _:
                if self.queue.settle([Settlement(lease, ended)]) != [Settled.APPLIED]:
                    raise LeaseLostError(f"job {lease.job.id} was taken by somebody else while it ran")
        self._count(lease.job.task, ended, skipped)

    def _count(self, task: str, ended: Ended, skipped: bool) -> None:
        match ended:
            case Done() | Committed():
                self.counts.skipped += skipped
                self.counts.done += not skipped
                self._done[task] += 1
            case Bury():
                self.counts.dead += 1
                self._failed[task] += 1
            case Retry(refund=refund):
                self.counts.retried += 1
                self._failed[task] += not refund
            case _:
                pass

    def record(self) -> None:
        """Add what was run to the queue's counters, as a worker does now and then."""
        if self._done or self._failed:
            self.queue.record(self._done, +self._failed)


@contextmanager
def inline(jf: JFast) -> Iterator[None]:
    """Run jobs as soon as they are enqueued, inside the block: at once, or when the session they went through commits.

    What a handler raises comes out of the call that enqueued, or out of the commit. Jobs enqueued by a handler run
    after it. Delayed jobs wait for :func:`drain`.
    """
    jf.setup()
    backend: Any = jf.queue.backend
    running = False

    def run() -> None:
        nonlocal running
        if running:
            return  # a handler enqueues: the drain that runs it takes this job next
        running = True
        try:
            drain(jf)
        finally:
            running = False

    @Loud
    def run_elsewhere() -> None:
        # Not this thread: it still holds the session, and an enqueue of the handler's own would be refused for that.
        if not running:
            _in_a_thread(run)

    def enqueue(jobs: Any) -> Any:
        stored = type(backend).enqueue(backend, jobs)
        run()
        return stored

    def enqueue_in(session: Any, jobs: Any) -> Any:
        stored = type(backend).enqueue_in(backend, session, jobs)
        on_commit(session, run_elsewhere)
        return stored

    patched: dict[str, Callable[..., Any]] = {"enqueue": enqueue}
    if isinstance(backend, SharesTransaction):
        patched["enqueue_in"] = enqueue_in
    for name, function in patched.items():
        setattr(backend, name, function)
    try:
        with jf.outbox.waking(run_elsewhere):
            yield
    finally:
        for name in patched:
            delattr(backend, name)


def _in_a_thread(work: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run, name="jfast-inline")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
