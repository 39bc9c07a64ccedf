"""How the two engines of a database are made, and what watches over their connections."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import QueuePool, SingletonThreadPool, StaticPool

from jfast_sync.errors import ConfigError, UnavailableError
from jfast_sync.sql import sqlite_file, sqlite_transactions
from jfast_sync.sql.failures import sqlstate
from jfast_sync.sql.ownership import refuse_autocommit
from jfast_sync.sql.sqlite_guard import GuardedConnection
from jfast_sync.sql.tenants import POOLED

__all__ = ["check_sqlite", "given_engines", "own_engines"]

CONNECT_TIMEOUT: Final = 5
_SESSIONS: Final = 10
_CONTROL: Final = 4
_BUSY_TIMEOUT: Final = 30.0
_OLDEST_POSTGRES: Final = 130000
_OLDEST_SQLITE: Final = (3, 35)


def own_engines(url: URL, size: int | None, pgbouncer: bool, name: str) -> tuple[Engine, Engine]:
    if url.get_backend_name() == "sqlite":
        arguments: dict[str, Any] = {
            "check_same_thread": False,
            "timeout": _BUSY_TIMEOUT,
            "factory": GuardedConnection,
        }
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
    make = partial(create_engine, url, poolclass=QueuePool, pool_use_lifo=True, hide_parameters=True, pool_timeout=30)
    # A size that was asked for is kept to; the default may grow under load.
    sessions = make(
        pool_size=size or _SESSIONS,
        max_overflow=0 if size else _SESSIONS,
        connect_args=arguments,
        execution_options={POOLED: pgbouncer},
    )
    if url.get_backend_name() == "postgresql" and not pgbouncer:
        # A plan made for an empty queue must not stay when it is full: the queue's statements go by their indexes.
        given = str(url.query.get("options", ""))
        arguments = {**arguments, "options": f"{given} -c enable_seqscan=off -c jit=off -c lock_timeout=10000".strip()}
    control = make(pool_size=_CONTROL, max_overflow=_CONTROL, connect_args=arguments)
    for engine in (sessions, control):
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", partial(sqlite_transactions.configure, busy_timeout=_BUSY_TIMEOUT))
            sqlite_file.follow(engine)
        else:
            event.listen(engine, "connect", _check_postgres)
            event.listen(engine, "handle_error", _see_lost)
            event.listen(engine, "checkin", _note_idle)
            event.listen(engine, "checkout", _probe_idle)
            event.listen(engine, "before_cursor_execute", _note_lasting)
            event.listen(engine, "reset", _forget_lasting)
    return sessions, control


def given_engines(engine: Engine, pgbouncer: bool) -> tuple[Engine, Engine]:
    if engine.dialect.name not in ("postgresql", "sqlite"):
        raise ConfigError(f"the engine is for {engine.dialect.name!r}; jfast-sync works on PostgreSQL and SQLite")
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)) or (
        engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")
    ):
        raise ConfigError("SQLite in memory gives every thread a database of its own; use a file")
    refuse_autocommit(engine)
    # A pool of its own made the same way: the user's connect_args, events and prepare_threshold hold in it as well.
    control = create_engine(engine.url, pool=engine.pool.recreate(), hide_parameters=True)
    return engine.execution_options(**{POOLED: pgbouncer}), control


def check_sqlite() -> None:
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


_WITHIN: Final = ("set local", "set transaction", "set constraints")
_FORGET: Final = "RESET SESSION AUTHORIZATION; RESET ALL; SELECT pg_advisory_unlock_all()"


def _note_lasting(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
    if _outlasts(statement):
        connection.info["jfast_lasting"] = True


def _outlasts(statement: str) -> bool:
    """Say whether a statement sets or locks something for longer than its transaction; in doubt it does."""
    said = statement.lower()
    head = said.lstrip()[:20]
    return (
        (head.startswith("set ") and not head.startswith(_WITHIN))
        or "search_path" in said
        or "advisory_lock" in said
        or ("set_config(" in said and "true)" not in said)
    )


def _forget_lasting(connection: Any, record: Any, _state: Any) -> None:
    """Take back what a handler has SET or locked for the whole connection, before somebody else gets it."""
    if record.info.pop("jfast_lasting", False):
        connection.rollback()
        connection.execute(_FORGET)
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
