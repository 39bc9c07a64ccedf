"""Ticks claimed in this process's memory: for one process only, and forgotten with it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from jfast_sync.ports import Claimed, Clock, TickClaim

__all__ = ["MemoryTickStore"]

_WAIT: Final = 1.0


class MemoryTickStore:
    """Implements :class:`jfast_sync.ports.TickStore`; from any thread.

    Args:
        clock: the system's unless given.
    """

    store = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._latest: dict[str, datetime] = {}
        self._claiming: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def now(self) -> datetime:
        return self._clock.now() if self._clock is not None else datetime.now(UTC)

    def latest(self, names: Sequence[str]) -> dict[str, datetime]:
        return {name: self._latest[name] for name in names if name in self._latest}

    @contextmanager
    def claiming(self, name: str, tick: datetime, *, by: str) -> Iterator[TickClaim]:  # noqa: ARG002 - the port's
        lock = self._claiming[name]
        if not lock.acquire(timeout=_WAIT):
            yield TickClaim(outcome=Claimed.BUSY)
            return
        try:
            if name in self._latest and tick <= self._latest[name]:
                yield TickClaim(outcome=Claimed.LOST)
                return
            yield TickClaim(outcome=Claimed.WON)
            self._latest[name] = tick
        finally:
            lock.release()

    def prune(self, retention: timedelta) -> int:  # noqa: ARG002 - the port's
        return 0  # only the latest is kept at all

    def close(self) -> None:
        """There is nothing to let go of."""
