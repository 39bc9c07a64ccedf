"""Renews this worker's leases, and puts back those that others let lapse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from jfast_sync.backoff import backoff
from jfast_sync.loop import Loop
from jfast_sync.ports import Held, Queue
from jfast_sync.worker.attempt import Stop
from jfast_sync.worker.breaking import break_off
from jfast_sync.worker.slots import Slots
from jfast_sync.worker.state import State

__all__ = ["Keeper"]

log = logging.getLogger("jfast_sync.worker")

_RECOVER_EVERY: Final = 1.0
_BATCH: Final = 500


class Keeper:
    """One thread; a blip costs it a beat, never its life.

    Args:
        visibility_timeout: seconds a lease runs for; renewed at a third, each time in full.
        claim_waits: whether a claim is waiting for jobs; one that polls looks for lapsed leases in the same query.
        on_death: called when the thread dies.
    """

    def __init__(
        self,
        queue: Queue,
        slots: Slots,
        state: State,
        visibility_timeout: float,
        *,
        claim_waits: Callable[[], bool],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._state = state
        self._third = visibility_timeout / 3
        self._renew_at = time.monotonic() + self._third
        self._recover_at = time.monotonic() + _RECOVER_EVERY  # the tables are made meanwhile, at a first start
        self._claim_waits = claim_waits
        self.loop = Loop("jfast-keeper", self._step, on_death)

    def _step(self) -> float:
        if time.monotonic() >= self._renew_at:
            self._renew()
            self._renew_at = time.monotonic() + self._third
        if time.monotonic() >= self._recover_at:
            self._recover()
            pause = self._third if self._claim_waits() else min(self._third, _RECOVER_EVERY)
            self._recover_at = time.monotonic() + backoff(1, base=pause, jitter=0.3)
        return max(min(self._renew_at, self._recover_at) - time.monotonic(), 0.0)

    def _renew(self) -> None:
        """Renew everything held: running, waiting for a thread, and finished but not yet written."""
        leases = self._state.leases()
        for start in range(0, len(leases), _BATCH):
            batch = leases[start : start + _BATCH]
            answers = self._queue.extend(batch)
            for lease, answer in zip(batch, answers, strict=True):
                if answer in (Held.LOST, Held.CANCEL):
                    self._tell(lease.token, Stop.LOST if answer is Held.LOST else Stop.CANCEL)

    def _tell(self, token: str, stop: Stop) -> None:
        attempt = self._state.running.get(token)
        if attempt is not None:
            if attempt.stop is not stop:
                job = attempt.lease.job
                log.warning("%s %s is told to stop: %s", job.task, job.id, _WHY[stop])
                break_off(attempt.tell(stop), "cancel")
        elif stop is Stop.LOST and self._slots.drop({token}):
            self._state.held.pop(token, None)

    def _recover(self) -> None:
        recovered = self._queue.recover()
        if recovered:
            log.info("%d jobs are available again: their leases had lapsed", recovered)


_WHY: Final = {Stop.LOST: "another worker has it", Stop.CANCEL: "somebody cancelled it"}
