"""What time it is in the store: read once a pass, and carried on by this machine's steady clock in between."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from jfast_sync.ports import TickStore

__all__ = ["StoreTime"]


class StoreTime:
    """The store's clock without a statement per look at it.

    Args:
        store: whose clock.
    """

    def __init__(self, store: TickStore) -> None:
        self._store = store
        self._read: tuple[datetime, float] | None = None

    def read(self) -> datetime:
        """Ask the store.

        Raises:
            UnavailableError: it cannot be reached.
        """
        now = self._store.now()
        self._read = (now, time.monotonic())  # one assignment, because /ready looks from another thread
        return now

    def now(self) -> datetime:
        """Return the time of the last reading and what has passed since; the first time asks the store."""
        return self.known or self.read()

    @property
    def known(self) -> datetime | None:
        """As :meth:`now`, but None where the store has not been asked yet."""
        if self._read is None:
            return None
        read, at = self._read
        return read + timedelta(seconds=time.monotonic() - at)
