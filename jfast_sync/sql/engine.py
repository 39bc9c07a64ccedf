"""The database of an app: one engine for sessions, and a small one of its own for the queue's work.

Handlers that hold every session must never keep the worker from claiming, settling and renewing, so the queue has
connections that nobody else uses. Both survive a fork: the child starts with empty pools.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool, SingletonThreadPool, StaticPool

from jfast_sync.errors import ConfigError, UnavailableError
from jfast_sync.sql import dsn as forms
from jfast_sync.sql import sqlite_transactions
from jfast_sync.sql.failures import is_lost, is_passing, sqlstate, translate
from jfast_sync.sql.session import AttemptTransaction, forget_sessions, hold, ring_after

__all__ = ["Database"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT: Final = 5
_SESSIONS: Final = 10
_CONTROL: Final = 4
_BUSY_TIMEOUT: Final = 30.0
_OLDEST_POSTGRES: Final = 130000
_OLDEST_SQLITE: Final = (3, 35)

_alive: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[object] = []  # a parent's pools: never used and never closed, or its connections would break


class Database:
    """One PostgreSQL or SQLite database.

    Args:
        dsn: a DSN in any of the usual forms, or an engine of your own, which is used as it is.
        pool_size: connections for sessions; the queue's own come on top. None: 10.
        pgbouncer: the server is behind PgBouncer in transaction pooling: nothing is prepared.
        application_name: how the connections show in ``pg_stat_activity``.

    Raises:
        ConfigError: the DSN cannot be used.
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
    ) -> None:
        self.pgbouncer = pgbouncer
        self.owns_engine = isinstance(dsn, str)
        if isinstance(dsn, str):
            url = forms.parse(dsn)
            forms.require_driver(url)
            self.engine, self.control = _own_engines(url, pool_size or _SESSIONS, pgbouncer, application_name)
        else:
            self.engine, self.control = _given_engines(dsn)
        self.dialect: str = self.engine.dialect.name
        self.path: str | None = None
        if self.dialect == "sqlite":
            _check_sqlite()
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

        Raises:
            UnavailableError: the server cannot be reached.
        """
        with hold(self.path), Session(self.engine) as session:
            yield session
            session.commit()
        ring_after(session)

    def attempt(self, tenant_id: str | None = None) -> AttemptTransaction:
        """Open the transaction of one job's run, of which the handler's session is a part."""
        return AttemptTransaction(self, tenant_id)

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


os.register_at_fork(after_in_child=_forked_all)


def _own_engines(url: URL, size: int, pgbouncer: bool, name: str) -> tuple[Engine, Engine]:
    if url.get_backend_name() == "sqlite":
        arguments: dict[str, Any] = {"check_same_thread": False, "timeout": _BUSY_TIMEOUT}
    else:
        arguments = {
            "connect_timeout": CONNECT_TIMEOUT,
            "application_name": name,
            "keepalives": 1,
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }
        arguments = {key: value for key, value in arguments.items() if key not in url.query}
        if pgbouncer:
            arguments["prepare_threshold"] = None
    make = partial(
        create_engine, url, poolclass=QueuePool, pool_use_lifo=True, hide_parameters=True, pool_timeout=30
    )
    sessions = make(pool_size=size, max_overflow=0 if size != _SESSIONS else _SESSIONS, connect_args=arguments)
    if url.get_backend_name() == "postgresql" and not pgbouncer:
        # A plan made for an empty queue must not stay when it is full: the queue's statements go by their indexes.
        given = str(url.query.get("options", ""))
        arguments = {**arguments, "options": f"{given} -c enable_seqscan=off -c jit=off -c lock_timeout=10000".strip()}
    control = make(pool_size=_CONTROL, max_overflow=_CONTROL, connect_args=arguments)
    for engine in (sessions, control):
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", partial(sqlite_transactions.configure, busy_timeout=_BUSY_TIMEOUT))
        else:
            event.listen(engine, "connect", _check_postgres)
            event.listen(engine, "handle_error", _see_lost)
            event.listen(engine, "checkin", _note_idle)
            event.listen(engine, "checkout", _probe_idle)
            event.listen(engine, "before_cursor_execute", _note_search_path)
            event.listen(engine, "reset", _reset_search_path)
    return sessions, control


def _given_engines(engine: Engine) -> tuple[Engine, Engine]:
    if engine.dialect.name not in ("postgresql", "sqlite"):
        raise ConfigError(f"the engine is for {engine.dialect.name!r}; jfast-sync works on PostgreSQL and SQLite")
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)) or (
        engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")
    ):
        raise ConfigError("SQLite in memory gives every thread a database of its own; use a file")
    # A pool of its own made the same way: the user's connect_args, events and prepare_threshold hold in it as well.
    control = create_engine(engine.url, pool=engine.pool.recreate(), hide_parameters=True)
    return engine.execution_options(), control


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise UnavailableError(f"SQLite 3.35 or newer is needed; this Python has {sqlite3.sqlite_version}")


def _check_postgres(connection: Any, _entry: object) -> None:
    version = connection.info.server_version
    if version < _OLDEST_POSTGRES:
        connection.close()
        raise UnavailableError(f"PostgreSQL 13 or newer is needed; this server is {version // 10000}")


def _see_lost(context: Any) -> None:
    if sqlstate(context.original_exception) == "25006":
        context.is_disconnect = True


def _note_search_path(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
    if "search_path" in statement.lower():
        connection.info["jfast_search_path"] = True


def _reset_search_path(connection: Any, record: Any, _state: Any) -> None:
    """Take back what a handler's SET search_path left on the connection, before somebody else gets it."""
    if record.info.pop("jfast_search_path", False):
        connection.rollback()
        connection.execute("RESET search_path")
        connection.commit()


_IDLE: Final = 10.0


def _note_idle(_connection: Any, entry: Any) -> None:
    entry.info["jfast_idle_since"] = time.monotonic()


def _probe_idle(connection: Any, entry: Any, _fairy: Any) -> None:
    """Ask a connection that lay idle whether it lives: a firewall or a restart may have cut it unseen."""
    since = entry.info.get("jfast_idle_since")
    if since is None or time.monotonic() - since < _IDLE:
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except Exception as exc:
        raise DisconnectionError from exc
