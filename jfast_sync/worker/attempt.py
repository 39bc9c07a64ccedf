"""The state of one running attempt, and the one question that matters: whether it may still commit.

The thread that runs the handler and the threads that watch it meet here, under the attempt's lock. Whoever takes
the right to commit first has it: after :meth:`Attempt.may_commit` said yes nobody can abandon the attempt as if
nothing had happened, and after :meth:`Attempt.abandon` the thread can neither commit nor settle, however late it
comes back.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, assert_never

from jfast_sync.job import Lease, RunningJob
from jfast_sync.outcome import CANCELLED, Bury, Done, Outcome, Policy, Release, decide
from jfast_sync.redact import error_text
from jfast_sync.worker.breaking import Breakable, end_fork, raise_in

if TYPE_CHECKING:
    from jfast_sync.tasks.spec import Task

__all__ = ["Attempt", "Committed", "Ended", "Interrupt", "Lost", "Report", "Stop", "Unknown"]


class Stop(Enum):
    """Why an attempt was told to stop."""

    TIMEOUT = "timeout"
    DRAIN = "drain"
    CANCEL = "cancel"  # somebody asked for this job to be stopped
    LOST = "lost"  # the lease's token is no longer current


@dataclass(frozen=True, slots=True)
class Committed:
    """Success is already written, in the handler's own transaction."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The reply to the commit was lost: look first; ``otherwise`` is how the attempt ends if nothing was committed."""

    otherwise: Outcome


@dataclass(frozen=True, slots=True)
class Lost:
    """Another worker has the job: nothing was committed, nothing is to be written."""


Ended = Outcome | Committed | Unknown | Lost


@dataclass(frozen=True, slots=True)
class Report:
    """How one attempt ended; ``skipped``: its idempotency key was there already and the handler was not called."""

    lease: Lease
    ended: Ended
    skipped: bool = False


class Interrupt(BaseException):
    """Raised inside the handler of a task with ``interrupt=True`` that has been told to stop."""


class _Phase(Enum):
    HANDLER = "handler"
    FINISHING = "finishing"
    COMMITTING = "committing"
    CONCLUDED = "concluded"  # how it ended is fixed; observers are being told
    ENDED = "ended"
    ABANDONED = "abandoned"


class Attempt:
    """One start of one job.

    Args:
        lease: what is being run.
        task: its declaration, None where this process does not know it.
        policy: the task's options over the configuration's.
        timeout: seconds until it is told to stop; 0 is never.
        patience: seconds it then has to react.
    """

    __slots__ = (
        "_concluded", "_lock", "_phase", "_struck", "_work", "cancelled", "due", "give_up_at", "lease",
        "patience", "policy", "running", "started", "stop", "task", "thread", "timeout",
    )  # fmt: skip

    def __init__(
        self, lease: Lease, task: Task | None, policy: Policy, *, timeout: float = 0.0, patience: float = 1.0
    ) -> None:
        self.lease = lease
        self.task = task
        self.policy = policy
        self.timeout = timeout
        self.patience = patience
        self.cancelled = threading.Event()
        self.running = RunningJob(lease.job, self.cancelled)
        self.started = time.monotonic()
        self.due = self.started + timeout if timeout else float("inf")
        self.give_up_at = float("inf")  # monotonic: when the watch gives the thread up
        self.stop: Stop | None = None
        self._lock = threading.Lock()
        self._phase = _Phase.FINISHING
        self._struck = False
        self.thread = 0  # ident of the thread that runs the handler
        self._work: Breakable | None = None
        self._concluded: Ended | None = None

    # the runner's side

    def attach(self, work: Breakable) -> None:
        """Name what has to be broken off with the attempt; whoever attaches looks at ``stop`` afterwards."""
        with self._lock:
            self._work = work

    def detach(self) -> None:
        """The transaction or process is about to be closed by its own thread."""
        with self._lock:
            self._work = None

    def restart_clock(self, allowance: float = 0.0) -> None:
        """Count the timeout from now, and ``allowance`` seconds more."""
        if self.timeout:
            self.due = time.monotonic() + self.timeout + allowance

    def call(self, handler: Callable[[], Any]) -> None:
        """Run the handler; only inside this call can an :class:`Interrupt` strike."""
        process = os.getpid()
        try:
            with self._lock:
                self.thread, self._phase = threading.get_ident(), _Phase.HANDLER
            handler()
        finally:
            if os.getpid() != process:
                end_fork(sys.exc_info()[1])
            self._leave()

    def may_commit(self) -> bool:
        """Take the right to commit; once given, the attempt ends as committed or unknown."""
        with self._lock:
            if self._phase is not _Phase.FINISHING or self.stop not in (None, Stop.CANCEL):
                return False
            self._phase = _Phase.COMMITTING
            return True

    def lose(self) -> None:
        """The token turned out to be no longer current."""
        with self._lock:
            self.stop = Stop.LOST

    def conclude(self, ended: Ended) -> bool:
        """Fix how the attempt ends, whatever happens while observers are told; False when it was abandoned."""
        with self._lock:
            if self._phase is _Phase.ABANDONED:
                return False
            self._concluded, self._phase = ended, _Phase.CONCLUDED
            return True

    def end(self) -> bool:
        """The thread is through; False when the attempt was abandoned, and then the thread must not report."""
        with self._lock:
            if self._phase is _Phase.ABANDONED:
                return False
            self._phase = _Phase.ENDED
            return True

    def verdict(self, error: BaseException | None) -> Outcome | Lost:
        """Say how the attempt ends, from what the handler raised and why it was told to stop."""
        match self.stop:
            case None:
                return decide(self.lease, error, self.policy)
            case Stop.TIMEOUT:
                return decide(self.lease, self.timed_out(), self.policy)
            case Stop.DRAIN:
                return Release()
            case Stop.CANCEL:
                return Done() if error is None else Bury(f"{CANCELLED}: {error_text(error)}")
            case Stop.LOST:
                return Lost()
            case _:
                assert_never(self.stop)

    def timed_out(self) -> TimeoutError:
        """The error of an attempt that ran past its time."""
        return TimeoutError(f"ran longer than {self.timeout:g} s")

    # the watchers' side

    def tell(self, stop: Stop) -> Breakable | None:
        """Tell the attempt to stop, without waiting; return what the caller now has to :meth:`~Breakable.cancel`.

        The first reason stands, but a lost lease outweighs all: such an attempt has nothing to write.
        """
        with self._lock:
            if self._phase in (_Phase.ENDED, _Phase.ABANDONED):
                return None
            first = self.stop is None
            if first or stop is Stop.LOST:
                self.stop = stop
            if stop is not Stop.CANCEL:
                self.give_up_at = min(self.give_up_at, time.monotonic() + self.patience)
            if first:
                self._interrupt()
            breakable = self._phase not in (_Phase.COMMITTING, _Phase.CONCLUDED)
            work = self._work if first and breakable else None
        self.cancelled.set()
        return work

    def abandon(self, *, in_commit: bool = False) -> tuple[Ended, Breakable | None] | None:
        """Take the right to commit and to settle; return how the attempt ends and what has to be terminated.

        None when the thread has ended, was abandoned before, or is committing and ``in_commit`` is not set.
        """
        with self._lock:
            if self._phase in (_Phase.ENDED, _Phase.ABANDONED):
                return None
            if self._phase is _Phase.COMMITTING and not in_commit:
                return None
            committing = self._phase is _Phase.COMMITTING
            self._phase = _Phase.ABANDONED
            work = self._work
        if self._concluded is not None:
            return self._concluded, work
        verdict = self.verdict(InterruptedError("did not react"))
        if committing and not isinstance(verdict, Lost):
            return Unknown(verdict), work
        return verdict, work

    @property
    def concluded(self) -> bool:
        """Whether its own thread came to say how it ended; observers are told by that thread then."""
        return self._concluded is not None

    @property
    def over(self) -> bool:
        """Whether the thread is through, or was given up."""
        return self._phase in (_Phase.ENDED, _Phase.ABANDONED)

    def work(self) -> Breakable | None:
        """What is to be broken off from outside, if the thread has not closed it yet."""
        with self._lock:
            return self._work

    def _interrupt(self) -> None:
        if self.task is not None and self.task.interrupt and self._phase is _Phase.HANDLER:
            self._struck = True
            raise_in(self.thread, Interrupt)

    def _leave(self) -> None:
        # An Interrupt that was set while the handler ran may strike anywhere up to here, once: taken back, or met
        # in the first pass and passed over in the second, it cannot strike later in code that is not the handler's.
        for _ in range(2):
            try:
                with self._lock:
                    if self._phase is _Phase.HANDLER:
                        self._phase = _Phase.FINISHING
                    if self._struck:
                        raise_in(self.thread, None)
                return
            except Interrupt:
                continue
