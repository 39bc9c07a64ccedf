"""A SQLite connection that another thread may close while this one is using it.

The driver itself may not be: closed during a call, it frees what the call is working on, and the process crashes or
raises MemoryError. Here every call holds the connection's guard, and whoever wants it closed waits for that, or leaves
the closing to the call that is running.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

__all__ = ["GuardedConnection"]

_PATIENCE: Final = 0.5  # seconds


class GuardedConnection(sqlite3.Connection):
    """A connection that :meth:`doom` may end from another thread, whatever it is doing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._guard = threading.RLock()
        self._doomed = False
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    @property
    def doomed(self) -> bool:
        return self._doomed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the guard during a call; refuse it on a doomed connection, and close one that was doomed meanwhile."""
        with self._guard:
            if self._doomed:
                raise sqlite3.ProgrammingError("the worker closed this connection: the job has been told to stop")
            try:
                yield
            finally:
                if self.doomed:
                    self._end()

    def cursor(self, factory: Any = None) -> Any:
        make: Any = super().cursor
        made = make(factory or GuardedCursor)
        self._cursors.add(made)
        return made

    def commit(self) -> None:
        with self.in_use():
            super().commit()

    def rollback(self) -> None:
        with self.in_use():
            super().rollback()

    def close(self) -> None:
        with self._guard:
            super().close()

    def _end(self) -> None:
        """Roll back and close; the caller holds the guard, so no statement of the handler's comes in between.

        Closing alone is not enough: while a cursor holds a statement, SQLite keeps the connection, and its lock.
        """
        for cursor in list(self._cursors):
            with suppress(sqlite3.Error):
                sqlite3.Cursor.close(cursor)
        with suppress(sqlite3.Error):
            super().rollback()
        super().close()

    def doom(self) -> None:
        """End the connection from another thread; what it had locked is free at once, or when the call returns.

        A call that is running is interrupted. One that waits for the write lock cannot be, and holds nothing: it
        closes the connection itself when it comes back.
        """
        self._doomed = True
        deadline = time.monotonic() + _PATIENCE
        while not self._guard.acquire(timeout=0.01):
            with suppress(sqlite3.ProgrammingError):  # its own thread has closed it just now
                self.interrupt()
            if time.monotonic() > deadline:
                return
        try:
            self._end()
        finally:
            self._guard.release()


class GuardedCursor(sqlite3.Cursor):
    """A cursor whose every call that reaches SQLite holds its connection's guard."""

    def __init__(self, connection: GuardedConnection) -> None:
        super().__init__(connection)
        self._owner = connection

    def execute(self, *args: Any) -> Any:
        with self._owner.in_use():
            return super().execute(*args)

    def executemany(self, *args: Any) -> Any:
        with self._owner.in_use():
            return super().executemany(*args)

    def __next__(self) -> Any:
        with self._owner.in_use():
            return super().__next__()

    def fetchone(self) -> Any:
        with self._owner.in_use():
            return super().fetchone()

    def fetchmany(self, *args: Any) -> Any:
        with self._owner.in_use():
            return super().fetchmany(*args)

    def fetchall(self) -> Any:
        with self._owner.in_use():
            return super().fetchall()

    def close(self) -> None:
        if not self._owner.doomed:  # else it was closed with the connection
            with self._owner.in_use():
                super().close()
