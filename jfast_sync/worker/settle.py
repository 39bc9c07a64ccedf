"""Writes outcomes: one thread, and in one statement whatever waits (group commit).

Nothing is delayed when the worker is idle, and under load the batches grow by themselves. A failure is retried
until the token is refused or the drain's deadline has passed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

from jfast_sync.backoff import backoff
from jfast_sync.errors import UnavailableError
from jfast_sync.job import Lease
from jfast_sync.loop import Deadline, Loop
from jfast_sync.outcome import Bury, Done, Outcome, Release, Retry, Settlement
from jfast_sync.ports import Queue, Settled
from jfast_sync.redact import error_text
from jfast_sync.worker.attempt import Committed, Lost, Report, Unknown
from jfast_sync.worker.state import State

__all__ = ["Settler"]

log = logging.getLogger("jfast_sync.worker")

_BATCH: Final = 1000
_RECORD_EVERY: Final = 1.0
_AGAIN_BASE, _AGAIN_CAP = 0.01, 1.0


@dataclass(slots=True)
class _Later:
    report: Report
    due: float
    tries: int


class Settler:
    """The one place that writes to the queue how attempts ended.

    Args:
        committed: looks up, in a fresh transaction, whether an attempt whose reply was lost has committed.
        shared: whether such a commit held the completion too, so that nothing is left to write.
        horizon: seconds; retries put off for longer do not count for :attr:`last_retry_due`.
        on_death: called when the thread dies.
    """

    def __init__(
        self,
        queue: Queue,
        state: State,
        *,
        committed: Callable[[Lease], bool],
        shared: Callable[[], bool],
        horizon: float,
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._queue = queue
        self._state = state
        self._committed = committed
        self._shared = shared
        self._horizon = horizon
        self._arriving: SimpleQueue[Report | None] = SimpleQueue()
        self._waiting: deque[Report] = deque()
        self._later: list[_Later] = []
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._recorded = time.monotonic()
        self._deadline: Deadline | None = None
        self.last_retry_due = 0.0  # monotonic: when the latest retry written here is due
        self.loop = Loop("jfast-settle", self._step, on_death)

    def put(self, report: Report) -> None:
        """Have an outcome written soon; from any thread."""
        self._arriving.put(report)

    @property
    def backlog(self) -> int:
        """How many outcomes wait to be written."""
        return self._arriving.qsize() + len(self._waiting) + len(self._later)

    def finish(self, deadline: Deadline) -> bool:
        """Write what waits, then end; return whether all was written before the deadline."""
        self._deadline = deadline
        self._arriving.put(None)
        while not deadline.passed and not self.loop.join(Deadline(deadline.remaining(0.2))):
            self.loop.wake()  # a pause after a failure must not outlast the deadline
        self.loop.stop()
        return not self.loop.alive and not self.backlog

    def _step(self) -> float | None:
        self._gather()
        self._write()
        self._record(at_once=self._deadline is not None)
        if self._deadline is None:
            return 0
        all_written = not (self.backlog or self._done or self._failed)
        return None if all_written or self._deadline.passed else 0

    def _gather(self) -> None:
        now = time.monotonic()
        for later in [later for later in self._later if later.due <= now]:
            self._later.remove(later)
            self._write_one(later.report, later.tries)
        with suppress(Empty):
            first = self._arriving.get(timeout=self._pause(now)) if not self._waiting else None
            if first is not None:
                self._waiting.append(first)
            while len(self._waiting) < _BATCH:
                report = self._arriving.get_nowait()
                if report is not None:
                    self._waiting.append(report)

    def _pause(self, now: float) -> float | None:
        """How long nothing has to be done, if nothing arrives; None is for ever."""
        pauses = [max(later.due - now, 0.0) for later in self._later]
        if self._done or self._failed:
            pauses.append(max(self._recorded + _RECORD_EVERY - now, 0.0))
        if self._deadline is not None:
            pauses.append(0.02)
        return min(pauses, default=None)

    def _write(self) -> None:
        """Write everything that waits; what waits stays there until it is written."""
        if not self._waiting:
            return
        batch = list(self._waiting)
        resolved = [(report, self._resolve(report)) for report in batch]
        settlements = [Settlement(one.lease, how) for one, how in resolved if not isinstance(how, Committed | Lost)]
        try:
            answers = iter(self._queue.settle(settlements) if settlements else ())
        except UnavailableError:
            raise
        except Exception as exc:
            log.warning("%d outcomes could not be written, each is tried by itself: %s", len(batch), error_text(exc))
            self._waiting.clear()
            self._later += [_Later(report, 0.0, 1) for report in batch]
            return
        self._waiting.clear()
        for report, outcome in resolved:
            written = isinstance(outcome, Committed | Lost)
            self._wrote(report, outcome, Settled.APPLIED if written else next(answers), tries=0)

    def _write_one(self, report: Report, tries: int) -> None:
        try:
            outcome = self._resolve(report)
            answer = Settled.APPLIED
            if not isinstance(outcome, Committed | Lost):
                answer = self._queue.settle([Settlement(report.lease, outcome)])[0]
        except Exception as exc:
            log.log(
                logging.WARNING if tries < 3 else logging.DEBUG,
                "the outcome of job %s could not be written and is tried again: %s",
                report.lease.job.id,
                error_text(exc),
            )
            self._put_off(report, tries)
            return
        self._wrote(report, outcome, answer, tries)

    def _put_off(self, report: Report, tries: int) -> None:
        pause = backoff(tries + 1, base=_AGAIN_BASE, cap=_AGAIN_CAP, jitter=0.3)
        self._later.append(_Later(report, time.monotonic() + pause, tries + 1))

    def _resolve(self, report: Report) -> Outcome | Committed | Lost:
        """Look before deciding, where the reply to a commit was lost."""
        if not isinstance(report.ended, Unknown):
            return report.ended
        if not self._committed(report.lease):
            return report.ended.otherwise
        return Committed() if self._shared() else Done()

    def _wrote(self, report: Report, outcome: Outcome | Committed | Lost, answer: Settled, tries: int) -> None:
        match answer:
            case Settled.BUSY:
                self._put_off(report, tries)
                return
            case Settled.REFUSED:
                log.warning(
                    "job %s (%s) was another worker's by the time it ended here; its outcome was discarded",
                    report.lease.job.id,
                    report.lease.job.task,
                )
                outcome = Lost()
            case Settled.APPLIED:
                pass
        self._state.held.pop(report.lease.token, None)
        self._count(report, outcome)

    def _count(self, report: Report, outcome: Outcome | Committed | Lost) -> None:
        counts, task = self._state.counts, report.lease.job.task
        match outcome:
            case Done() | Committed():
                counts.done += 1
                counts.skipped += report.skipped
                self._done[task] += 1
            case Retry():
                counts.retried += 1
                if outcome.until is None and outcome.delay <= self._horizon:
                    self.last_retry_due = max(self.last_retry_due, time.monotonic() + outcome.delay)
                if not outcome.refund:
                    counts.failed += 1
                    self._failed[task] += 1
            case Bury():
                counts.failed += 1
                counts.dead += 1
                self._failed[task] += 1
            case Release():
                counts.released += 1
            case Lost():
                counts.lost += 1

    def _record(self, *, at_once: bool = False) -> None:
        if not (self._done or self._failed) or (not at_once and time.monotonic() < self._recorded + _RECORD_EVERY):
            return
        self._recorded = time.monotonic()
        done, failed = self._done, self._failed
        self._done, self._failed = Counter(), Counter()
        try:
            self._queue.record(done, failed)
        except Exception as exc:
            self._done.update(done)
            self._failed.update(failed)
            log.debug("the counters could not be written now: %s", error_text(exc))
