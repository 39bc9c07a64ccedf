"""Claims jobs for the runner threads: in one batch what they can start now, plus a buffer measured in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jfast_sync.backoff import backoff
from jfast_sync.job import Lease
from jfast_sync.loop import Loop
from jfast_sync.outcome import Release
from jfast_sync.ports import Queue, Selection
from jfast_sync.worker.attempt import Report
from jfast_sync.worker.settle import Settler
from jfast_sync.worker.slots import Slots
from jfast_sync.worker.state import State

__all__ = ["Fetcher"]

_ROOM_WAIT: Final = 1.0  # seconds to wait for a thread before looking again
_CLAIM_WAIT: Final = 5.0
_DRAIN_WAIT_BASE, _DRAIN_WAIT_CAP = 0.01, 0.25
_BACKLOG: Final = 2000  # outcomes that may wait to be written before nothing more is claimed


class Fetcher:
    """The one thread that claims.

    Args:
        setup: called until it succeeds, before the first claim.
        is_empty: in drain mode, says whether nothing is left to wait for; None goes on for ever.
        on_end: called when there is nothing more to claim.
        on_death: called when the thread dies.
    """

    def __init__(
        self,
        queue: Queue,
        selection: Selection,
        slots: Slots,
        state: State,
        settler: Settler,
        *,
        setup: Callable[[], None],
        is_empty: Callable[[], bool] | None,
        on_end: Callable[[], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._queue = queue
        self._selection = selection
        self._slots = slots
        self._state = state
        self._settler = settler
        self._setup = setup
        self._is_set_up = False
        self._is_empty = is_empty
        self._on_end = on_end
        self.loop = Loop("jfast-fetcher", self._step, on_death)
        self._empty_claims = 0
        self._empty_looks = 0
        self.waiting = False  # whether a claim is waiting right now: then the backend is looked at without us

    def stop(self) -> None:
        """Claim nothing any more and release at once what no thread has started; does not wait."""
        self.loop.stop()
        self._release(self._slots.close())
        self._queue.wake()

    def _step(self) -> float | None:
        if not self._is_set_up:
            self._setup()
            self._is_set_up = True
        if self._slots.spent:
            self._on_end()
            return None
        self._release(self._slots.stale())
        room = self._slots.room(_ROOM_WAIT)
        if not room.limit or self._settler.backlog > _BACKLOG or self.loop.stopping:
            return 0 if not room.limit else 0.01
        leases = self._claim(room.limit, room.idle)
        if leases:
            self._state.held.update((lease.token, lease) for lease in leases)
            self._release(self._slots.give(leases))
        elif not room.idle:
            self._slots.wait_idle(0.05)
        elif self._is_over():
            self._on_end()
            return None
        return 0

    def _claim(self, limit: int, idle: int) -> list[Lease]:
        # After a failure the first claim does not wait, so that whoever asks learns at once that it works again.
        idle = 0 if self.loop.last_error is not None else idle
        self.waiting = bool(idle) and self._is_empty is None
        wait = _CLAIM_WAIT if self.waiting else self._drain_wait() if idle else 0.0
        try:
            leases = self._queue.claim(limit, wait, self._selection)
        finally:
            self.waiting = False
        self._empty_claims = 0 if leases else self._empty_claims + 1
        self._empty_looks = 0 if leases else self._empty_looks
        return leases

    def _drain_wait(self) -> float:
        """In drain mode an end that is near is noticed at once, and one that is far is looked for seldom."""
        return backoff(self._empty_claims, base=_DRAIN_WAIT_BASE, cap=_DRAIN_WAIT_CAP) if self._empty_claims else 0.0

    def _is_over(self) -> bool:
        """In drain mode: nothing is in hand, and two looks with a claim in between found nothing to wait for."""
        if self._is_empty is None:
            return False
        empty = self._slots.quiet and not self._state.held and self._is_empty()
        self._empty_looks = self._empty_looks + 1 if empty else 0
        return self._empty_looks > 1

    def _release(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._settler.put(Report(lease, Release()))
