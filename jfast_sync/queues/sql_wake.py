"""How who waits for rows of a table is woken: a pipe in this process, and a notification from the others.

Waking is an optimisation: polling finds every row by itself, so whatever fails here is logged and survived.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from sqlalchemy import text

from jfast_sync.errors import UnavailableError
from jfast_sync.queues import wake_postgres, wake_sqlite

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["Coalesced", "Doorbell", "Listener", "TableBell"]

_STOP: Final = b"s"
_LOOK: Final = b"l"


class Listener(Protocol):
    """Where notifications of other processes arrive; used by the claiming thread only."""

    def prepare(self) -> int | None:
        """Be ready to hear, before the look that may find nothing; return the descriptor to wait on, None for none."""
        ...

    def drain(self) -> None:
        """Take in what arrived."""
        ...

    def close(self) -> None: ...


class Doorbell:
    """The claimer's own pipe: rung by any thread, and by a signal handler, because a write to a pipe takes no lock."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def stop_waiting(self) -> None:
        """End the present wait, or the next one."""
        self._ring(_STOP)

    def look_again(self) -> None:
        """Let a waiting claimer look at once."""
        self._ring(_LOOK)

    def _ring(self, byte: bytes) -> None:
        with contextlib.suppress(OSError):  # full: it is ringing already; closed: nobody waits
            os.write(self._writer, byte)

    def wait(self, seconds: float, other: int | None) -> bool:
        """Wait until rung, or ``other`` is readable, or the time is over; return whether to stop waiting."""
        readers = [self._reader] if other is None else [self._reader, other]
        ready, _, _ = select.select(readers, [], [], max(seconds, 0.0))
        return self._reader in ready and self._taken()

    def _taken(self) -> bool:
        rung = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reader, 4096):
                rung += chunk
        return _STOP in rung

    def close(self) -> None:
        # Forgotten before they are closed: closed twice, the number may be somebody else's file by then.
        descriptors, self._reader, self._writer = (self._reader, self._writer), -1, -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


class Coalesced:
    """Run an action for many callers at once: each waits for one that began after it asked, few have to run one.

    No timer: when nobody else is at it the action runs at once; while one runs, those who come later share the next.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self.renew()

    def renew(self) -> None:
        """Start afresh in a forked child, where a lock may have been left held."""
        self._changed = threading.Condition()
        self._begun = self._ended = 0
        self._running = False

    def __call__(self) -> None:
        with self._changed:
            wanted = self._begun + 1
            while self._running:
                self._changed.wait()
                if self._ended >= wanted:
                    return
            self._running = True
            self._begun = mine = self._begun + 1
        try:
            self._action()
        finally:
            with self._changed:
                self._running = False
                self._ended = max(self._ended, mine)
                self._changed.notify_all()


class TableBell:
    """Tells all processes that a table has something new, and lets this one hear it.

    Args:
        database: where the table is.
        table: its name.
        listen: use PostgreSQL's notifications.
        listen_dsn: a direct connection for that, where the database's own leads through a pooler.
    """

    def __init__(self, database: Database, table: str, *, listen: bool = True, listen_dsn: str | None = None) -> None:
        self._database = database
        self._table = table
        self._listen_dsn = listen_dsn
        self._postgres = database.dialect == "postgresql"
        #: Whether rings arrive in this process.
        self.heard = listen and (not self._postgres or listen_dsn is not None or not database.pgbouncer)
        self._channel: str | None = None
        self._coalesced = Coalesced(self._ring)
        database.after_fork.append(self._coalesced.renew)

    def ring(self) -> None:
        """Tell the others, after a commit; what goes wrong is logged."""
        if self.heard or not self._postgres:
            self._coalesced()

    def listener(self) -> Listener:
        """Return a new place where rings arrive."""
        if self._postgres:
            connect = partial(wake_postgres.listening_connection, self._database, self._listen_dsn)
            return wake_postgres.PostgresListener(connect, self._name)
        return wake_sqlite.SqliteListener(self._database.path or "")

    def _ring(self) -> None:
        if not self._postgres:
            wake_sqlite.ring(self._database.path or "")
            return
        with contextlib.suppress(UnavailableError):
            wake_postgres.notify(self._database, self._name())

    def _name(self) -> str:
        if self._channel is None:
            schema = self._database.transact(lambda connection: connection.scalar(text("SELECT current_schema()")))
            self._channel = wake_postgres.channel(self._table, str(schema))
        return self._channel
