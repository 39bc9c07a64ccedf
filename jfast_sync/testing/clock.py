"""A clock for tests."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

__all__ = ["FakeClock"]


class FakeClock:
    """A clock that stands still until it is told to move; safe from any thread.

    Args:
        start: an aware instant; noon of 1 January 2026, UTC, unless given.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """Return the instant it stands at, aware, UTC."""
        with self._lock:
            return self._now

    def advance(self, by: float | timedelta) -> datetime:
        """Move on by seconds or a timedelta (negative: back) and return the new instant."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        with self._lock:
            self._now += step
            return self._now
