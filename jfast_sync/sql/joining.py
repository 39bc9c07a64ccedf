"""What a session must be, so that what is enqueued, published or claimed through it stands or falls with its commit."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from jfast_sync.errors import UnsupportedError
from jfast_sync.sql import sqlite_transactions
from jfast_sync.sql.failures import translated

__all__ = ["check_session", "joined"]

_LEGACY: Final = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which is all there was before Python 3.12
_AUTOCOMMIT: Final = (
    "this session is in AUTOCOMMIT, where every statement is durable by itself: a job, an event or a claim would stay "
    "though the session is rolled back. Use jf.session(), or bind the session to an engine without AUTOCOMMIT"
)
_SAVEPOINT: Final = (
    "this session is in a savepoint, and its engine leaves SQLite's transactions to the sqlite3 driver, where a "
    "savepoint's end may be a commit: a job, an event or a claim would stay though the session is rolled back. Use "
    'jf.session(), an engine made with connect_args={"autocommit": False} (Python 3.12), or do it after the savepoint'
)


def check_session(session: object) -> None:
    """Refuse what is no SQLAlchemy session, and say what to pass instead.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(session, (Session, scoped_session)):
        raise TypeError(f"expected a SQLAlchemy session, got {_instead(session)}")


def joined(session: Session) -> Connection:
    """Return the session's connection, in a transaction that what is written next is a part of.

    Raises:
        TypeError: it is no session.
        UnsupportedError: the session is in AUTOCOMMIT, or in a savepoint of SQLite's that ends in a commit.
        UnavailableError: the database cannot be reached.
    """
    check_session(session)
    with translated():
        connection = session.connection()
        driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        if getattr(driver, "autocommit", False) is True:
            raise UnsupportedError(_AUTOCOMMIT)
    elif not sqlite_transactions.ours(connection):
        _refuse_drivers_own(connection, driver)
    return connection


def _refuse_drivers_own(connection: Connection, driver: Any) -> None:
    control = getattr(driver, "autocommit", _LEGACY)
    begins_alone = control == _LEGACY and driver.isolation_level is not None
    if control is True or (control == _LEGACY and not begins_alone and not driver.in_transaction):
        raise UnsupportedError(_AUTOCOMMIT)
    # The driver begins before a write, unless something is open: then the savepoint itself was the beginning.
    if begins_alone and connection.in_nested_transaction():
        raise UnsupportedError(_SAVEPOINT)


def _instead(session: object) -> str:
    name = type(session).__name__
    if "Async" in name or "async" in name:
        return f"an {name}: jfast-sync is for SQLAlchemy's synchronous sessions"
    if isinstance(session, Connection):
        return "a Connection: pass Session(connection), and commit that session"
    if isinstance(session, (Engine, sessionmaker)):
        return f"{'an Engine' if isinstance(session, Engine) else 'a sessionmaker'}: open a session of it"
    return f"{session!r:.80}"
