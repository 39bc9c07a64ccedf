"""A session with a transaction of its own, which its block commits: ``jf.session()`` and a request's.

What the block's answer says about the commit must be so. PostgreSQL answers the COMMIT of a transaction in which a
statement has failed with ROLLBACK, and no driver raises for it: that is looked at before. An error after the commit
changes nothing any more, and where the reply to it was lost nobody knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from jfast_sync.redact import traceback_text
from jfast_sync.sql.failures import is_lost
from jfast_sync.sql.ownership import Owner, own
from jfast_sync.sql.session import has_bells, is_loud, ring_after

__all__ = ["commit_unknown", "open_session"]

log = logging.getLogger(__name__)

_OWN: Final = "jfast_own"
_IN_ERROR: Final = 3  # libpq's PQTRANS_INERROR
_ABORTED: Final = (
    "this transaction cannot be committed: a statement in it has failed, and PostgreSQL would answer COMMIT with "
    "ROLLBACK, everything lost without a word. Put what may fail into `with session.begin_nested():`, which rolls back "
    "to before it, or let the error out"
)
_REFUSAL: Final = (
    "the transaction of this session is its block's or its request's: it commits at the end and rolls back when "
    "something is raised; use session.commit() and session.rollback()"
)
_UNKNOWN: Final = "The reply to COMMIT was lost: it is not known whether everything was written or nothing."


@dataclass(slots=True)
class _Own(Owner):
    """How far the present transaction of a session has come."""

    connections: list[Connection] = field(default_factory=list)
    durable: bool = False
    unknown: bool = False


@contextmanager
def open_session(engine: Engine) -> Iterator[Session]:
    """Open a session; commit on normal exit, roll back on an exception.

    Raises:
        PendingRollbackError: a statement failed and the error was swallowed outside of a savepoint.
        UnsupportedError: its transaction was to be ended past the session, with a COMMIT as text for example.
    """
    with Session(engine) as session:
        owner = session.info[_OWN] = _Own(refusal=_REFUSAL, others_roll_back=True)
        try:
            yield session
            _commit(session, owner)
        except BaseException:
            _let_go(owner)
            raise
    ring_after(session)


def commit_unknown(session: object) -> bool:
    """Say whether the reply to a session's last COMMIT was lost, so that nobody knows whether it was carried out."""
    owner: _Own | None = session.info.get(_OWN) if isinstance(session, Session) else None
    return owner is not None and owner.unknown


def _commit(session: Session, owner: _Own) -> None:
    try:
        session.commit()
    except Exception as exc:
        if owner.durable and not is_loud(session, exc):
            # Not ours to raise: who reads an error here would do it all again.
            log.error("committed, but a listener failed after that\n%s", traceback_text(exc))  # noqa: TRY400 - redacted
            return
        if owner.sent and isinstance(exc, DBAPIError) and is_lost(exc):
            owner.unknown = True
            exc.add_note(_UNKNOWN)
        raise


def _let_go(owner: _Own) -> None:
    """Take transactions whose commit failed or was refused from their connections, so that the pool rolls back.

    The driver may hold them open still, with their writes and locks: the next user's commit would make them durable.
    """
    for connection in owner.connections:
        with suppress(Exception):
            transaction = connection.get_transaction()
            if transaction is not None and not transaction.is_active:
                transaction.rollback()


@event.listens_for(Session, "after_begin")
def _begun(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    owner: _Own | None = session.info.get(_OWN)
    if owner is not None and not transaction.nested:
        own(connection, owner)
        owner.connections.append(connection)


@event.listens_for(Session, "before_commit")
def _committing(session: Session) -> None:
    if session.in_nested_transaction():
        return
    owner: _Own | None = session.info.get(_OWN)
    connections = owner.connections if owner is not None else []
    if owner is None and has_bells(session):  # a user's own, that something of ours was written in
        connections = [session.connection()]
    if any(_aborted(connection) for connection in connections):
        raise PendingRollbackError(_ABORTED)
    if owner is not None:
        owner.durable = owner.sent = owner.unknown = False
        owner.ending = True


@event.listens_for(Session, "after_commit", insert=True)
def _committed(session: Session) -> None:
    owner: _Own | None = session.info.get(_OWN)
    if owner is not None and not session.in_nested_transaction():
        owner.durable = True


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    owner: _Own | None = session.info.get(_OWN)
    if owner is not None and transaction.parent is None:
        owner.ending = False
        owner.connections.clear()


def _aborted(connection: Connection) -> bool:
    if connection.dialect.name != "postgresql" or connection.closed or connection.invalidated:
        return False
    driver: Any = connection.connection.driver_connection
    return getattr(getattr(driver, "info", None), "transaction_status", None) == _IN_ERROR
