"""Tells attempts past their time to stop, and gives up the threads that do not react.

A thread of its own, so that a queue that does not answer (the keeper's business) never holds up a timeout.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from jfast_sync import context
from jfast_sync.loop import Deadline, Loop
from jfast_sync.observers import Observers
from jfast_sync.worker.attempt import Attempt, Ended, Report, Stop
from jfast_sync.worker.breaking import break_off
from jfast_sync.worker.execute import announce, log_end
from jfast_sync.worker.options import WorkerOptions
from jfast_sync.worker.runner import Runners
from jfast_sync.worker.settle import Settler
from jfast_sync.worker.state import State

__all__ = ["Watch"]

log = logging.getLogger("jfast_sync.worker")

_LOOK_EVERY: Final = 0.5
_COMMIT_PATIENCE: Final = 5.0
_STOP_LOOK_EVERY: Final = 0.05
_REACT: Final = 0.5  # seconds, in a drain, for jobs to react and for connections to end


class Watch:
    """Timeouts, and what follows from them.

    Args:
        on_too_many: called with a message when more threads were given up than the worker can live with.
        on_death: called when the thread dies.
    """

    def __init__(
        self,
        state: State,
        runners: Runners,
        settler: Settler,
        observers: Observers,
        options: WorkerOptions,
        *,
        on_too_many: Callable[[str], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._runners = runners
        self._settler = settler
        self._observers = observers
        self._options = options
        self._on_too_many = on_too_many
        self._next = 0.0
        self.loop = Loop("jfast-watch", self._step, on_death)

    def started(self, attempt: Attempt) -> None:
        """An attempt starts; looked at in time even if it is due before the next look."""
        if attempt.due < self._next:
            self.loop.wake()

    def _step(self) -> float:
        now = time.monotonic()
        self._next = now + _LOOK_EVERY
        for attempt in self._state.attempts():
            with _speaking_of(attempt):
                if now >= attempt.due and attempt.give_up_at == float("inf"):
                    self._time_out(attempt)
                if now >= attempt.give_up_at:
                    self._give_up(attempt, now)
            if not attempt.over:
                self._next = min(self._next, max(min(attempt.due, attempt.give_up_at), now))
        return max(self._next - time.monotonic(), 0.001)

    def _time_out(self, attempt: Attempt) -> None:
        log.warning("%s %s is told to stop: %s", attempt.lease.job.task, attempt.lease.job.id, attempt.timed_out())
        break_off(attempt.tell(Stop.TIMEOUT), "cancel")

    def _give_up(self, attempt: Attempt, now: float) -> None:
        if attempt.stop is Stop.LOST and now < attempt.due:
            # It can neither commit nor settle any more; only its locks must not block the job's new holder.
            break_off(attempt.work(), "terminate")
            attempt.give_up_at = attempt.due
            return
        where = _stack_top(attempt.thread)
        if self._abandon(attempt, in_commit=now >= attempt.give_up_at + _COMMIT_PATIENCE) is None:
            return
        log.error(
            "%s %s did not react to being told to stop; its thread is given up and replaced (it was at %s)",
            attempt.lease.job.task,
            attempt.lease.job.id,
            where,
        )
        self._runners.replace(attempt)
        alive = self._runners.abandoned
        if alive > self._options.abandoned_limit:
            self._on_too_many(f"{alive} threads do not react to their timeouts")

    def release_all(self, last: Deadline, wait: Callable[[float], None]) -> None:
        """Tell what still runs to stop, then take its rights, end its connections and release it.

        Args:
            last: when all of this has to be over.
            wait: waits for so many seconds, or less where something happens.
        """
        for attempt in self._state.attempts():
            break_off(attempt.tell(Stop.DRAIN), "cancel")
        react = Deadline(last.remaining(min(_REACT, self._options.patience)))
        while self._state.running and not react.passed:
            wait(react.remaining(_STOP_LOOK_EVERY))
        closing: list[threading.Thread] = []
        while (survivors := self._state.attempts()) and not last.passed:
            for attempt in survivors:
                with _speaking_of(attempt):
                    closing += self._release(attempt, in_commit=last.remaining() < _REACT)
            if self._state.running:  # a commit in progress is let finish briefly
                wait(_STOP_LOOK_EVERY)
        for thread in closing:
            thread.join(last.remaining(_REACT))

    def _release(self, attempt: Attempt, *, in_commit: bool) -> list[threading.Thread]:
        closing = self._abandon(attempt, in_commit=in_commit)
        if closing is None:
            return []
        log.warning("%s %s did not end in time; it was released", attempt.lease.job.task, attempt.lease.job.id)
        self._runners.abandon(attempt)
        return closing

    def _abandon(self, attempt: Attempt, *, in_commit: bool) -> list[threading.Thread] | None:
        """Take the attempt's rights, end its connection and settle it; None when it is over or still committing.

        Returns the thread that ends the connection.
        """
        taken = attempt.abandon(in_commit=in_commit)
        if taken is None:
            return None
        ended, work = taken
        closing = break_off(work, "terminate")
        self._state.counts.abandoned += 1
        if not attempt.concluded:
            self._announce(attempt, ended)
        self._settler.put(Report(attempt.lease, ended))
        return [closing] if closing is not None else []

    def _announce(self, attempt: Attempt, ended: Ended) -> None:
        """Tell observers in a thread of its own: one that blocks would hold up every timeout and the drain."""
        seconds = time.monotonic() - attempt.started
        log_end(attempt, ended, seconds)
        tell = partial(copy_context().run, announce, self._observers, attempt, ended, None, seconds)
        with suppress(RuntimeError):  # at the interpreter's end no thread can be started any more
            threading.Thread(target=tell, name="jfast-observers", daemon=True).start()


@contextmanager
def _speaking_of(attempt: Attempt) -> Iterator[None]:
    """Give log lines and observers inside the block the job's context, as its own thread would."""
    with context.bind(attempt.lease.job.origin), context.bind_job(attempt.running):
        yield


def _stack_top(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"
