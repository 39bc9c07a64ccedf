"""The database of an app: one engine for sessions, and a small one of its own for the queue's work.

Handlers that hold every session must never keep the worker from claiming, settling and renewing, so the queue has
connections that nobody else uses. Both survive a fork: the child starts with empty pools.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from jfast_sync.context import current_tenant_id
from jfast_sync.errors import ConfigError, UnavailableError
from jfast_sync.forks import after_fork
from jfast_sync.redact import error_text
from jfast_sync.sql import dsn as forms
from jfast_sync.sql import ownership, sqlite_transactions, tenants
from jfast_sync.sql.failures import is_lost, is_passing, translate
from jfast_sync.sql.own_session import open_session
from jfast_sync.sql.pools import check_sqlite, given_engines, own_engines
from jfast_sync.sql.session import AttemptTransaction, forget_sessions, hold

__all__ = ["Database"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_REPLY_LOST: Final = "the reply to a commit was lost: it is not known whether everything was written or nothing"


_alive: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[object] = []  # a parent's pools: never used and never closed, or its connections would break


class Database:
    """One PostgreSQL or SQLite database.

    Args:
        dsn: a DSN in any of the usual forms, or an engine of your own, which is used as it is.
        pool_size: connections for sessions; the queue's own come on top. None: 10.
        pgbouncer: the server is behind PgBouncer in transaction pooling: nothing is prepared.
        application_name: how the connections show in ``pg_stat_activity``.
        rls: every transaction of a session works as the tenant that opened it; PostgreSQL only.

    Raises:
        ConfigError: the DSN cannot be used, the engine is one for AUTOCOMMIT, or ``rls`` is asked of SQLite.
        MissingDriverError: psycopg is not installed.
        UnavailableError: this Python's SQLite is older than 3.35.

    ``engine`` is for sessions, ``control`` for the queue's short transactions. No connection is opened here.
    """

    def __init__(
        self,
        dsn: str | Engine,
        *,
        pool_size: int | None = None,
        pgbouncer: bool = False,
        application_name: str = "jfast-sync",
        rls: bool = False,
    ) -> None:
        self.pgbouncer = pgbouncer
        self.rls = rls
        self.owns_engine = isinstance(dsn, str)
        if isinstance(dsn, str):
            url = forms.parse(dsn)
            forms.require_driver(url)
            self.engine, self.control = own_engines(url, pool_size, pgbouncer, application_name)
        else:
            self.engine, self.control = given_engines(dsn, pgbouncer)
        ownership.watch(self.engine)
        self.dialect: str = self.engine.dialect.name
        self.path: str | None = None
        if rls and self.dialect != "postgresql":
            raise ConfigError(
                f"[plugin.database] rls = true needs PostgreSQL, and this database is {self.dialect}: tenants would "
                "not be kept apart"
            )
        if rls:
            tenants.watch(self.engine)
        if self.dialect == "sqlite":
            check_sqlite()
            self.path = os.path.realpath(self.engine.url.database or "")
            sqlite_transactions.take_over(self.engine)
            sqlite_transactions.take_over(self.control)
            event.listen(self.control, "connect", sqlite_transactions.read_any_text)
        self._checks = threading.Lock()
        self._check: _Check | None = None
        self.after_fork: list[Callable[[], None]] = []
        _alive.add(self)

    def __repr__(self) -> str:
        return f"Database({self.engine.url.render_as_string(hide_password=True)!r})"

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session; commit on normal exit, roll back on an exception.

        What the database refuses is raised as SQLAlchemy's own exceptions, as in any session. With ``rls`` all its
        transactions are those of the tenant that is the current one now.
        """
        with hold(self.path), open_session(self.engine) as session:
            self.follow_tenant(session)
            yield session

    def attempt(self, tenant_id: str | None = None) -> AttemptTransaction:
        """Open the transaction of one job's run, of which the handler's session is a part.

        Args:
            tenant_id: whose it is, where the database has ``rls``.
        """
        return AttemptTransaction(self, tenant_id)

    def follow_tenant(self, session: Session) -> None:
        """With ``rls``: make what a session does from now on that of the current tenant."""
        if self.rls:
            tenants.work_as(session, current_tenant_id())

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a short transaction on the queue's own connections.

        Tried a second time where the connection turned out to be dead before the commit, and after a deadlock or a
        timeout. A commit whose reply was lost is never repeated.

        Raises:
            UnavailableError: the database cannot be reached or cannot serve.
            SchemaError: the tables are not there.
        """
        try:
            return self._attempt(work)
        except _Again as again:
            log.debug("trying a transaction again: %s", type(again.cause).__name__)
        try:
            return self._attempt(work)
        except _Again as again:
            raise translate(again.cause) from again.cause

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        committing = False
        try:
            with self.control.connect() as connection:
                try:
                    with connection.begin():
                        result = work(connection)
                        committing = True
                    return result
                except DBAPIError as exc:
                    if is_lost(exc) and not connection.invalidated:
                        connection.invalidate()
                    raise
        except DBAPIError as exc:
            if not committing and (is_lost(exc) or is_passing(exc)):
                raise _Again(exc) from exc
            if committing and is_lost(exc):
                raise UnavailableError(f"{_REPLY_LOST} ({error_text(exc.orig or exc)})") from exc
            raise translate(exc) from exc
        except PoolTimeout as exc:
            raise translate(exc) from exc

    def check(self, timeout: float = 2.0) -> None:
        """Ask the database for an answer within about ``timeout`` seconds.

        Raises:
            UnavailableError: it cannot be reached, or accepts connections and never replies.
        """
        with self._checks:
            # One question at a time: a server that never replies must not cost a thread and a connection per asker.
            if self._check is None or self._check.done.is_set():
                self._check = _Check(self)
            check = self._check
        if not check.done.wait(timeout):
            raise UnavailableError(f"the database did not answer within {timeout:g} s")
        if check.error is not None:
            raise check.error

    def dispose(self) -> None:
        """Close every pooled connection; a user's own engine is left alone."""
        self.control.dispose()
        if self.owns_engine:
            self.engine.dispose()

    def _forked(self) -> None:
        # In the child: no locks, no logging, nothing closed - the sockets and files are the parent's too.
        for engine in (self.engine, self.control):
            _inherited.append(engine.pool)
            engine.dispose(close=False)
        self._checks, self._check = threading.Lock(), None
        for renew in self.after_fork:
            renew()


class _Check:
    """One question to the database, in a thread of its own, with the answer for everybody who waits for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.done = threading.Event()
        self.error: Exception | None = None
        threading.Thread(target=self._ask, name="jfast-database-check", daemon=True).start()

    def _ask(self) -> None:
        try:
            self._database.transact(lambda connection: connection.execute(text("SELECT 1")).scalar())
        except Exception as exc:
            self.error = exc
        finally:
            self.done.set()


class _Again(Exception):
    def __init__(self, cause: DBAPIError) -> None:
        super().__init__()
        self.cause = cause


def _forked_all() -> None:
    forget_sessions()
    for database in list(_alive):
        database._forked()


after_fork(_forked_all)
