"""What every part of the SQL queue stands on: the table, its statements, and short transactions on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, TextClause, text

from jfast_sync.errors import SchemaError, UnavailableError
from jfast_sync.queues import sql_postgresql, sql_sqlite
from jfast_sync.queues.sql_rows import batch, micros
from jfast_sync.queues.sql_statements import Statements
from jfast_sync.sql.failures import LockTimeout
from jfast_sync.sql.schema_steps import table_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from jfast_sync.ports import Clock
    from jfast_sync.sql.engine import Database

__all__ = ["CHUNK", "Rows", "SqlTable", "SystemClock"]

T = TypeVar("T")

CHUNK: Final = 1000
Rows = list[dict[str, Any]]

_SCHEMA: Final = text(
    "SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(:table)"
)


class SystemClock:
    """This machine's clock: right for SQLite, whose every user is on this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class SqlTable:
    """The table of one queue in one database."""

    def __init__(self, database: Database, name: str, visibility_timeout: float, clock: Clock | None) -> None:
        self.database = database
        self.table = table_name(name)
        self.visibility_timeout = visibility_timeout
        self._clock: Clock = clock or SystemClock()
        self._postgres = database.dialect == "postgresql"
        self._statements: Statements | None = None if self._postgres else sql_sqlite.statements(self.table)
        self._failing_since: float | None = None
        self._no_recovery_until = 0.0

    def notify(self) -> None:
        """Wake idle claimers, here and in other processes, after a commit."""

    @property
    def _sql(self) -> Statements:
        """The statements; on PostgreSQL with the table's schema, because a handler may change its search path."""
        if self._statements is None:
            found = self._watched(lambda connection: connection.execute(_SCHEMA, {"table": self.table}).scalar())
            if found is None:
                raise SchemaError(f'there is no table {self.table}; run "jfast-sync db upgrade"')
            self._statements = sql_postgresql.statements(f"{found}.{self.table}")
        return self._statements

    def _run(self, connection: Connection, statement: TextClause, **parameters: Any) -> Rows:
        """Run a statement and read all it returns at once: an unread cursor would keep SQLite's write lock."""
        result = connection.execute(statement, self._with_now(parameters))
        return [row._asdict() for row in result.all()] if result.returns_rows else []

    def _change(self, connection: Connection, statement: TextClause, **parameters: Any) -> int:
        """Run a statement that returns no rows; return how many it changed."""
        return connection.execute(statement, self._with_now(parameters)).rowcount

    def _batch(
        self, connection: Connection, statement: TextClause, items: Sequence[Mapping[str, Any]], **parameters: Any
    ) -> Rows:
        return self._run(connection, statement, batch=batch(items), **parameters)

    def _with_now(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if not self._postgres:
            parameters["now"] = micros(self._clock.now())
        return parameters

    def _transact(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which uses the statements, in a short transaction."""
        _ = self._sql  # found out before: inside, it would take a second connection of a pool that may have one
        return self._watched(work)

    def _watched(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a short transaction, keeping an eye on how long the database could not be reached."""
        try:
            result = self.database.transact(work)
        except UnavailableError as exc:
            # PostgreSQL's lock timeout is an answer; SQLite's means that nobody at all could renew a lease.
            away = not (self._postgres and isinstance(exc, LockTimeout))
            if away and self._failing_since is None:
                self._failing_since = time.monotonic()
            raise
        if self._failing_since is not None:
            self._after_outage(time.monotonic() - self._failing_since)
        return result

    def _after_outage(self, seconds: float) -> None:
        """Give the holders of leases about one lease's time to come back, where they may have missed a renewal.

        They renew at a third of a lease, so a shorter outage has cost nobody a lease; and a connection that fails now
        and then must not keep a dead worker's jobs waiting for ever.
        """
        self._failing_since = None
        if seconds > self.visibility_timeout / 3:
            self._no_recovery_until = time.monotonic() + self.visibility_timeout
