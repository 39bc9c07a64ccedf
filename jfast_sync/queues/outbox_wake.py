"""How a commit in one process wakes the outbox's relays in others: as claimers of the SQL queue are woken."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from jfast_sync.errors import UnavailableError
from jfast_sync.queues import sql_wake
from jfast_sync.sql import dsn as forms

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["OutboxWake"]

_TABLE: Final = "jfast_outbox"


class OutboxWake:
    """Rings, and listens, for the outbox of one database.

    Args:
        database: where the outbox is.
        listen: use PostgreSQL's notifications.
        listen_dsn: a direct connection for that, where the database's own leads through a pooler.
    """

    def __init__(self, database: Database, *, listen: bool = True, listen_dsn: str | None = None) -> None:
        self._database = database
        self._listen_dsn = listen_dsn
        self._postgres = database.dialect == "postgresql"
        self.heard = not self._postgres or (listen and (listen_dsn is not None or not database.pgbouncer))
        self._channel: str | None = None
        self._notify = sql_wake.Coalesced(self._ring)
        database.after_fork.append(self._notify.renew)

    def ring(self) -> None:
        """Wake the relays of all processes, after a commit; what goes wrong is logged, they look by themselves."""
        if self.heard:
            self._notify()

    def listener(self) -> sql_wake.Listener:
        """Return a new place where rings arrive."""
        if self._postgres:
            return sql_wake.PostgresListener(self._connect, self._name)
        return sql_wake.SqliteListener(self._database.path or "")

    def bell(self) -> sql_wake.Doorbell:
        """Return what ends a wait for rings."""
        return sql_wake.Doorbell()

    def _ring(self) -> None:
        if not self._postgres:
            sql_wake.ring_sqlite(self._database.path or "")
            return
        with contextlib.suppress(UnavailableError):
            sql_wake.notify_postgres(self._database, self._name())

    def _name(self) -> str:
        if self._channel is None:
            found = self._database.transact(lambda connection: connection.scalar(text("SELECT current_schema()")))
            self._channel = sql_wake.channel(_TABLE, str(found))
        return self._channel

    def _connect(self) -> Any:
        if self._listen_dsn is not None:
            import psycopg

            return psycopg.connect(forms.libpq(self._listen_dsn), autocommit=True, connect_timeout=5)
        pooled = self._database.control.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()  # from here it is the listener's
        connection.rollback()
        connection.autocommit = True
        return connection
