"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class FakeClock:
    """Stands at `start` (aware) and moves by :meth:`advance` alone. Safe for any number of threads."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = start.astimezone(UTC)
        self._watchers: list[Callable[[], object]] = []

    def now(self) -> datetime:
        """Return the instant the clock stands at, aware, UTC."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> datetime:
        """Move the clock by `seconds` (negative: backwards), call the watchers, and return the new instant."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            watchers, now = tuple(self._watchers), self._now
        for watcher in watchers:
            watcher()
        return now

    def watch(self, watcher: Callable[[], object]) -> None:
        """Have `watcher` called after every move, in the thread that moved the clock."""
        with self._lock:
            self._watchers.append(watcher)
