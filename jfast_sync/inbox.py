"""The inbox: what was done already, remembered in the same transaction as what was done.

A claim is a row. It commits with the work, so a redelivery finds it; it rolls back with the work, so a retry runs.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, text

from jfast_sync.context import current_tenant_id
from jfast_sync.sql.failures import translated
from jfast_sync.sql.joining import check_session, joined
from jfast_sync.tasks.keys import typed_key

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database

__all__ = ["claim_on", "claim_once", "claimed", "prune", "stored_key"]

_LONGEST: Final = 128
_OURS: Final = "@"
_HASHED: Final = "sha256:"
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_PRUNED_AT_ONCE: Final = 1000


class _Current(Enum):
    TENANT = "the tenant of the running request or job"


_INSERT: Final = text(
    "INSERT INTO jfast_inbox (consumer, message_id, processed_at) VALUES (:consumer, :message_id, :now) "
    "ON CONFLICT (consumer, message_id) DO NOTHING"
)
_FIND: Final = text("SELECT 1 FROM jfast_inbox WHERE consumer = :consumer AND message_id = :message_id")
_INSERT_POSTGRES: Final = text(str(_INSERT).replace(":now", "clock_timestamp()"))
_SHOW_WAIT: Final = text("SELECT current_setting('lock_timeout')")
_SET_WAIT: Final = text("SELECT set_config('lock_timeout', :value, true)")
_PRUNE_POSTGRES: Final = text(
    "DELETE FROM jfast_inbox AS i USING (SELECT consumer, message_id FROM jfast_inbox WHERE "
    "processed_at < (SELECT clock_timestamp() - :days * interval '1 day') "
    "ORDER BY processed_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS old "
    "WHERE i.consumer = old.consumer AND i.message_id = old.message_id"
)
_PRUNE_SQLITE: Final = text(
    "DELETE FROM jfast_inbox WHERE rowid IN (SELECT rowid FROM jfast_inbox WHERE processed_at < :before "
    "ORDER BY processed_at LIMIT :limit)"
)


def claim_once(
    session: Session,
    message_id: Any,
    *,
    consumer: str,
    tenant_id: str | _Current | None = _Current.TENANT,
    wait: float = 5.0,
) -> bool:
    """Claim a message for a consumer in the session's transaction; False when it was claimed before.

    While another transaction that claimed it is open, this waits for its outcome: False when it commits, True when
    it rolls back.

    Args:
        session: whose commit makes the claim count.
        message_id: a text is taken as it is; a number, UUID, date or tuple with its type, so 1 is not ``"1"``. None
            is no key: nothing is claimed, the answer is True. Long ones are hashed.
        consumer: who claims; the same message is one claim per consumer.
        tenant_id: whose claim; the running request's or job's unless given. None: nobody's, the message id as it is,
            as the asynchronous sibling writes it.
        wait: seconds to wait for another transaction (PostgreSQL; on SQLite the connection's busy timeout holds).

    Raises:
        ValueError: an empty message id or consumer.
        TypeError: ``session`` is no SQLAlchemy session.
        UnsupportedError: the claim would not stand or fall with the session's commit (AUTOCOMMIT).
        LockTimeout: another transaction held the claim for longer than ``wait``; on PostgreSQL the session must be
            rolled back. It is an :class:`~jfast_sync.errors.UnavailableError`: trying again later helps.
    """
    if message_id is None:
        return True
    return claim_on(joined(session), message_id, consumer=consumer, tenant_id=tenant_id, wait=wait)


def claim_on(
    connection: Connection, message_id: Any, *, consumer: str, tenant_id: str | _Current | None, wait: float = 5.0
) -> bool:
    """Claim as :func:`claim_once` does, in a connection's transaction; no session's rollback takes it back."""
    row = _row(message_id, consumer, tenant_id)
    with translated():
        if connection.dialect.name == "postgresql":
            return _claim_waiting(connection, row, wait)
        row["now"] = _micros(datetime.now(UTC))
        return connection.execute(_INSERT, row).rowcount == 1


def claimed(
    session: Session, message_id: Any, *, consumer: str, tenant_id: str | _Current | None = _Current.TENANT
) -> bool:
    """Say whether a message was claimed by a transaction that committed, or by this one."""
    check_session(session)
    row = _row(message_id, consumer, tenant_id)
    with translated():
        return session.connection().execute(_FIND, row).first() is not None


def prune(database: Database, retention_days: float) -> int:
    """Forget claims older than ``retention_days``, in batches of their own; return how many."""
    statement, parameters = _PRUNE_POSTGRES, {"days": retention_days, "limit": _PRUNED_AT_ONCE}
    if database.dialect == "sqlite":
        before = _micros(datetime.now(UTC) - timedelta(days=retention_days))
        statement, parameters = _PRUNE_SQLITE, {"before": before, "limit": _PRUNED_AT_ONCE}
    total = 0
    while True:
        gone = database.transact(lambda connection: connection.execute(statement, parameters).rowcount)
        total += gone
        if gone < _PRUNED_AT_ONCE:
            return total


def stored_key(message_id: Any, tenant_id: str | None) -> str:
    """Return the text a claim is stored under: no two different keys share one, whatever characters they hold.

    Raises:
        ValueError: an empty key.
    """
    if isinstance(message_id, str) and not message_id:
        raise ValueError("an empty message id would be one claim shared by all; pass None for no claim")
    if isinstance(message_id, str) and tenant_id is None:
        return _foreign(message_id)
    # A text that looks like one of ours is written with its type, as what is no text is.
    plain = isinstance(message_id, str) and not message_id.startswith(_OURS)
    raw = message_id if plain else f"{_OURS}:{typed_key(message_id)}"
    key = raw if tenant_id is None else f"{_OURS}{len(tenant_id)}:{tenant_id}:{raw}"
    return key if _fits(key) else _OURS + _hashed(key)


def _row(message_id: Any, consumer: str, tenant_id: str | _Current | None) -> dict[str, Any]:
    if not consumer:
        raise ValueError("an empty consumer would share its claims with everybody; name who claims")
    tenant = current_tenant_id() if isinstance(tenant_id, _Current) else tenant_id
    return {
        "consumer": _foreign(consumer),
        "message_id": stored_key(message_id, tenant),
    }


def _foreign(text: str) -> str:
    """Return a text as it is, unless it does not fit or could be taken for one that was made here."""
    return text if _fits(text) and not text.startswith((_OURS, _HASHED)) else _hashed(text)


def _fits(key: str) -> bool:
    return len(key) <= _LONGEST and not _UNSTORABLE.search(key)


def _hashed(key: str) -> str:
    return _HASHED + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _claim_waiting(connection: Connection, row: dict[str, Any], wait: float) -> bool:
    before = connection.execute(_SHOW_WAIT).scalar()
    connection.execute(_SET_WAIT, {"value": f"{max(int(wait * 1000), 1)}ms"})
    fresh = connection.execute(_INSERT_POSTGRES, row).rowcount == 1
    connection.execute(_SET_WAIT, {"value": before})  # the handler's own statements wait as they would have
    return fresh


def _micros(value: datetime) -> int:
    return round(value.timestamp() * 1_000_000)
