"""Looking at the outbox's rows: counts, and the messages that were given up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, TextClause

from jfast_sync.outbox.rows import DeadMessage, Message, OutboxStats, instant, micros
from jfast_sync.outbox.statements import statements

if TYPE_CHECKING:
    from jfast_sync.ports import Clock
    from jfast_sync.sql.engine import Database

__all__ = ["PAGE", "DeadMessages", "ids_json", "message_of"]

_CAP: Final = 10_000
PAGE: Final = 1000


class DeadMessages:
    """What an operator sees and decides; every method is one short transaction, or several where it may be long.

    Args:
        database: where the outbox lives.
        clock: SQLite's time; this machine's unless given.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self.postgres = database.dialect == "postgresql"
        self._clock = clock
        self.sql = statements(database.dialect)

    def stats(self) -> OutboxStats:
        """Count rows by state, without scanning."""
        return self.database.transact(self._stats)

    def _stats(self, connection: Connection) -> OutboxStats:
        counts = self.run(connection, self.sql.counts, cap=_CAP)[0]
        age = connection.execute(self.sql.oldest, self._with_now({})).scalar() if counts["pending"] else None
        why = self.sql.failing if counts["failing"] else self.sql.last_death if counts["dead"] else None
        return OutboxStats(
            **counts,
            oldest_pending_seconds=None if age is None else max(float(age), 0.0),
            last_error=None if why is None else connection.execute(why).scalar(),
            cap=_CAP,
        )

    def dead(self, limit: int) -> list[DeadMessage]:
        """List dead messages, the latest first."""
        rows = self.database.transact(lambda connection: self.run(connection, self.sql.dead, limit=limit))
        return [
            DeadMessage(
                message=message_of(row, row["payload"]),
                error=row["last_error"],
                created_at=instant(row["created_at"]),
                died_at=instant(row["died_at"]),
            )
            for row in rows
        ]

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Let dead messages be sent again, attempts at zero; return the ids that were there."""
        return self._ids(self.sql.revive, ids)

    def revive_all(self) -> int:
        """Let every dead message be sent again, in batches, the longest dead first; return how many."""
        return self._in_pages(lambda connection: len(self.run(connection, self.sql.revive_some, limit=PAGE)))

    def discard(self, ids: Sequence[str]) -> list[str]:
        """Remove dead messages for good; return the ids that were there."""
        return self._ids(self.sql.discard, ids)

    def discard_all(self) -> int:
        """Remove every dead message, in batches; return how many."""
        return self._in_pages(lambda connection: len(self.run(connection, self.sql.discard_some, limit=PAGE)))

    def _ids(self, statement: TextClause, ids: Sequence[str]) -> list[str]:
        rows = self.database.transact(lambda connection: self.run(connection, statement, ids=ids_json(ids)))
        found = {row["id"] for row in rows}
        return [one for one in dict.fromkeys(ids) if one in found]

    def _in_pages(self, work: Callable[[Connection], int]) -> int:
        total = 0
        while True:
            changed = self.database.transact(work)
            total += changed
            if changed < PAGE:
                return total

    def run(self, connection: Connection, statement: TextClause, **parameters: Any) -> list[dict[str, Any]]:
        """Return a statement's rows; it knows the time."""
        return [row._asdict() for row in connection.execute(statement, self._with_now(parameters)).all()]

    def _change(self, connection: Connection, statement: TextClause, **parameters: Any) -> int:
        return connection.execute(statement, self._with_now(parameters)).rowcount

    def _with_now(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if not self.postgres:
            parameters["now"] = micros(self.now())
        return parameters

    def now(self) -> datetime:
        """Return the time of SQLite's rows."""
        return self._clock.now() if self._clock is not None else datetime.now(UTC)


def message_of(row: Mapping[str, Any], body: str = "") -> Message:
    """Return the message of a row."""
    return Message(
        seq=row["seq"] or 0,
        id=row["id"],
        kind=row["kind"],
        destination=row["destination"],
        body=body,
        key=row["message_key"],
        request_id=row["request_id"],
        tenant_id=row["tenant_id"],
        attempts=row["attempts"],
    )


def ids_json(ids: Iterable[str]) -> str:
    """Return ids as one parameter."""
    return json.dumps(list(ids))
