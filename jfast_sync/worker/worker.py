"""The worker: builds its parts, and owns the order in which they start and stop."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from jfast_sync.health import Health
from jfast_sync.loop import Deadline, Loop
from jfast_sync.observers import Observers
from jfast_sync.outcome import Policy
from jfast_sync.ports import Queue, Selection
from jfast_sync.redact import error_text
from jfast_sync.worker.attempt import Attempt
from jfast_sync.worker.child import ChildLauncher
from jfast_sync.worker.emptiness import Emptiness
from jfast_sync.worker.execute import Executor
from jfast_sync.worker.fetcher import Fetcher
from jfast_sync.worker.keeper import Keeper
from jfast_sync.worker.options import WorkerOptions
from jfast_sync.worker.runner import Runners
from jfast_sync.worker.settle import Settler
from jfast_sync.worker.signals import on_stop_signal
from jfast_sync.worker.slots import Slots
from jfast_sync.worker.state import Counts, State
from jfast_sync.worker.supervisor import follow_supervisor
from jfast_sync.worker.transaction import Transactions
from jfast_sync.worker.turns import quick_turns
from jfast_sync.worker.watch import Watch

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database
    from jfast_sync.tasks.registry import Registry

__all__ = ["Worker"]

log = logging.getLogger("jfast_sync.worker")

_LOOK_EVERY: Final = 0.05  # seconds between looks while a stop or an end is awaited; nothing polls otherwise
_JOIN: Final = 0.5  # seconds that threads which have nothing left to do may take to end
_WRITE: Final = 1.8  # after the grace: until every release is written or given up


class Worker:
    """Takes jobs from a queue and runs them in threads.

    Use :meth:`run` where the process is the worker's (it handles SIGTERM and SIGINT, in the main thread), or
    :meth:`start`, :meth:`stop` and :meth:`join` inside another program. A worker runs once.

    Args:
        queue: where jobs come from.
        tasks: the declared tasks.
        database: where sessions are opened; None where none is configured.
        context: the app, which handlers get as TaskContext.
        options: threads, grace and limits.
        observers: told of starts, successes, failures and deaths.
        policy: the configuration's backoff; a task's own options go over it.
        child: runs a job alone in a process of its own; None where the app cannot be built again there.
        setup: called before the first claim, until it succeeds; the queue's own unless given.
        coming: whether jobs are on their way into the queue, which a drain waits for.
    """

    def __init__(
        self,
        queue: Queue,
        tasks: Registry,
        database: Database | None,
        context: object,
        options: WorkerOptions,
        *,
        observers: Observers | None = None,
        policy: Policy | None = None,
        child: ChildLauncher | None = None,
        setup: Callable[[], None] | None = None,
        coming: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._queue = queue
        self._tasks = tasks
        self._coming = coming
        self._transactions = Transactions(queue, database)
        observers = observers if observers is not None else Observers()
        policy = policy if policy is not None else Policy()
        self._state = State()
        self._slots = Slots(options.threads, options.max_jobs, max_age=options.visibility_timeout / 3)
        executor = Executor(
            tasks, self._transactions, context, options, observers=observers, policy=policy, child=child
        )
        self._settler = Settler(
            queue,
            self._state,
            committed=self._transactions.committed,
            shared=self._transactions.shares,
            horizon=options.drain_horizon,
            on_death=self._dying("settle"),
        )
        self._runners = Runners(
            options.threads,
            self._slots,
            self._state,
            executor,
            self._settler,
            on_start=self._started,
            on_death=self._dying("runner"),
        )
        self._watch = Watch(
            self._state,
            self._runners,
            self._settler,
            observers,
            options,
            on_too_many=self._fail,
            on_death=self._dying("watch"),
        )
        self._keeper = Keeper(
            queue,
            self._slots,
            self._state,
            options.visibility_timeout,
            claim_waits=lambda: self._fetcher.waiting,
            on_death=self._dying("keeper"),
        )
        self._fetcher = self._make_fetcher(setup if setup is not None else queue.setup)
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._stops = 0
        self._ending = False
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._phase = "new"
        self.exit_code = 0

    # --- what a program calls --------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until stopped, drained or failed; return the exit code: 0, or 1 after a failure of the worker itself.

        In the main thread SIGTERM and SIGINT stop it as :meth:`stop` does. Daemon threads may be left that do not
        react (:attr:`abandoned_threads`); a process that has to be gone then ends with ``os._exit``.
        """
        with on_stop_signal(self.stop):
            follow_supervisor(self.stop)
            return self._work()

    def start(self) -> None:
        """Work in threads of this process, without signal handlers, until :meth:`stop` or the interpreter's exit."""
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="jfast-worker", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def stop(self) -> None:
        """Ask the worker to stop, without waiting; a second call ends the grace of running jobs.

        May be called from any thread and from a signal handler.
        """
        self._stops += 1
        self._bell.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for a started worker's end, up to ``timeout`` seconds; return whether it has ended."""
        if self._thread is None or self._pid != os.getpid():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def counts(self) -> Counts:
        """What became of the jobs taken so far; a copy."""
        counts = self._state.counts.copy()
        counts.started = self._slots.started
        return counts

    @property
    def running(self) -> int:
        """How many jobs are running now."""
        return self._slots.busy

    @property
    def abandoned_threads(self) -> int:
        """How many threads were given up because they did not react, and are still alive."""
        return self._runners.abandoned

    def health(self) -> Health:
        """Say whether the worker works, and if not, what keeps it from it."""
        if self._pid != os.getpid():
            return Health(status="degraded", detail="the worker was started before a fork and does not run here")
        troubles = [
            f"{what} fails: {loop.last_error}" for what, loop in self._loops().items() if loop.last_error is not None
        ]
        if self._failure is not None:
            troubles.insert(0, self._failure)
        if self._phase == "ended":
            troubles.append("the worker has stopped")
        if abandoned := self.abandoned_threads:
            troubles.append(f"{abandoned} threads do not react to their timeouts")
        return Health(
            status="degraded" if troubles else "ok",
            detail="; ".join(troubles),
            meta={"worker": self.name, "threads": self.options.threads, "running": self.running, "state": self._phase},
        )

    # --- start and stop --------------------------------------------------------------------------------------

    def _make_fetcher(self, setup: Callable[[], None]) -> Fetcher:
        options = self.options
        tasks = self._tasks.accepted() if options.claim == "registered" else None
        selection = Selection(worker=self.name, queues=options.queues, tasks=tasks)
        empty = Emptiness(
            self._queue, selection, options.drain_horizon, lambda: self._settler.last_retry_due, self._coming
        )
        return Fetcher(
            self._queue,
            selection,
            self._slots,
            self._state,
            self._settler,
            setup=setup,
            is_empty=empty if options.drain else None,
            on_end=self._end,
            on_death=self._dying("fetcher"),
        )

    def _work(self) -> int:
        self._phase = "running"
        log.info("worker %s starts: %d threads on %s", self.name, self.options.threads, self._queue.backend)
        try:
            self._settler.loop.start()
            self._runners.start()
            self._watch.loop.start()
            self._keeper.loop.start()
            self._fetcher.loop.start()
        except RuntimeError as exc:
            self._fail(f"its threads cannot be started: {error_text(exc)}")
        while not self._stops and self._failure is None and not self._is_over():
            self._wait(_LOOK_EVERY if self._ending else None)
        self._phase = "stopping"
        with quick_turns():
            self._shut_down()
        self._phase = "ended"
        self.exit_code = 0 if self._failure is None else 1
        atexit.unregister(self._at_exit)
        return self.exit_code

    def _is_over(self) -> bool:
        return self._ending and self._slots.quiet and not self._state.held

    def _shut_down(self) -> None:
        """Claimers first, then runners under one deadline, then what is left is released, settle, keeper."""
        grace = Deadline(self.options.grace)
        self._fetcher.stop()
        if self._state.running:
            log.info("stopping: %d running jobs have up to %g s", self.running, self.options.grace)
        while self._state.running and not grace.passed and self._stops < 2:
            self._wait(grace.remaining(_LOOK_EVERY))
        last = Deadline(_WRITE)
        self._watch.loop.stop()
        self._watch.release_all(last, self._wait)
        while not self._fetcher.loop.join(Deadline(_LOOK_EVERY)) and last.remaining() > _JOIN:
            self._queue.wake()
        if not self._settler.finish(last):
            log.error("%d outcomes could not be written; their leases will lapse", self._settler.backlog)
        self._keeper.loop.stop()
        self._keeper.loop.join(Deadline(_LOOK_EVERY))
        self._runners.join(Deadline(_JOIN))

    def _wait(self, timeout: float | None) -> None:
        with suppress(Empty):
            self._bell.get(timeout=timeout)

    def _started(self, attempt: Attempt) -> None:
        self._watch.started(attempt)

    def _end(self) -> None:
        self._ending = True
        self._bell.put(None)

    def _dying(self, part: str) -> Callable[[BaseException], None]:
        return lambda exc: self._fail(f"its {part} thread died: {error_text(exc)}")

    def _fail(self, why: str) -> None:
        """Something of the worker's own is broken: stop rather than stay half alive."""
        if self._failure is None:
            self._failure = f"the worker stops: {why}"
            log.critical("%s", self._failure)
        self._bell.put(None)

    def _loops(self) -> dict[str, Loop]:
        return {
            "claiming": self._fetcher.loop,
            "writing outcomes": self._settler.loop,
            "renewing leases": self._keeper.loop,
        }

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            self.stop()
            self.join(self.options.grace + _WRITE + 1.0)
