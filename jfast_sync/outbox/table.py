"""The outbox's rows in one database: leased to a relay, marked, counted, replayed.

A relay leases rows in a short transaction, sends them outside of any, and marks them in another. A lease is an
``available_at`` in the future and a token; it ends by itself.

Of one topic and key only the oldest pending rows are leased, without a gap. What was looked at and has to wait is
``held``, so that no look meets it again, until whoever finishes the oldest lets the next ones go.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from jfast_sync.outbox.dead import PAGE, DeadMessages, ids_json, message_of
from jfast_sync.outbox.rows import Failure, Lane, Message, in_runs, lanes_json, unbroken
from jfast_sync.sql.failures import translated
from jfast_sync.sql.joining import joined

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.ports import Clock
    from jfast_sync.sql.engine import Database

__all__ = ["Leased", "OutboxTable"]

_MOST_BYTES: Final = 4 * 1024 * 1024  # of payloads in one relay's hands, and in one call of a broker
_SQUEEZED: Final = 100  # how much smaller PostgreSQL stores what compresses best
_MEASURED: Final = 4  # rows, at least, whose sizes are asked for in one statement
_KEYS_SWEPT: Final = 50
_LONGEST_LEASE: Final = 300.0  # seconds; a retry's delay may be as long
_FIRST: Final = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """What one look found. ``looked_at`` counts the rows met, ``pause`` is the seconds until the next one is due."""

    messages: Sequence[Message] = ()
    token: str = ""
    looked_at: int = 0
    held: int = 0
    pause: float | None = None


class OutboxTable(DeadMessages):
    """The table ``jfast_outbox`` of one database; every method is one short transaction unless it takes a session.

    Args:
        database: where it lives.
        clock: SQLite's time; this machine's unless given.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        super().__init__(database, clock)
        self._swept = _FIRST
        self._latest: datetime | None = None  # the latest time that a sweep has seen

    # --- writing, in the caller's transaction ----------------------------------------------------------------

    def insert(self, session: Session, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write rows in the session's transaction; return how many: one whose id is there already is left as it is."""
        with translated():
            written = joined(session).execute(self.sql.insert, [self._with_now(dict(row)) for row in rows])
            return written.rowcount

    def find(self, session: Session, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return the kind and destination of the rows that have one of these ids."""
        with translated():
            found = session.connection().execute(self.sql.find, {"ids": ids_json(ids)}).all()
        return {row.id: (row.kind, row.destination) for row in found}

    # --- a relay's work --------------------------------------------------------------------------------------

    def lease(self, limit: int, seconds: float) -> Leased:
        """Lease up to ``limit`` due rows for ``seconds``, the longest due first, without a gap within a key."""
        if not self.postgres:  # without the only write lock, as long as nothing is due
            idle = self.database.transact(self._idle)
            if idle is not None:
                return idle
        return self.database.transact(lambda connection: self._lease(connection, limit, seconds))

    def _idle(self, connection: Connection) -> Leased | None:
        return None if self.run(connection, self.sql.due, limit=1) else Leased(pause=self._next_due(connection))

    def _lease(self, connection: Connection, limit: int, seconds: float) -> Leased:
        if not self.postgres:
            self._change(connection, self.sql.lock)  # from here on nobody else writes: what is read stays true
        rows = self.run(connection, self.sql.due, limit=limit)
        if not rows:
            return Leased(pause=self._next_due(connection))
        met = [message_of(row) for row in self._fitting(connection, rows)]
        runs = in_runs(met)
        ready = [message for message in met if message.lane is None]
        held = 0
        heads = self._heads(connection, {lane: len(run) for lane, run in runs.items()})
        for lane, run in runs.items():
            length = unbroken(run, heads[lane])
            ready += run[:length]
            if rest := [message.id for message in run[length:]]:
                held += self._hold(connection, heads[lane][0]["id"], rest, ours={message.id for message in met})
        if not ready:
            return Leased(looked_at=len(rows), held=held)
        token = secrets.token_hex(8)
        ids = ids_json(message.id for message in ready)
        leased = connection.execute(self.sql.lease, self._with_now({"ids": ids, "token": token, "seconds": seconds}))
        bodies = {row.id: row.payload for row in leased}
        # In the order of `ready`, where a run follows its sequence; the rows came as they were due.
        messages = [replace(message, body=bodies[message.id]) for message in ready if message.id in bodies]
        return Leased(messages=messages, token=token, looked_at=len(rows), held=held)

    def _fitting(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return as many rows as may be in memory together, one at least; they came with their sizes as stored."""
        total, taken = 0, 0
        while taken < len(rows):
            part = _possibly(rows[taken:])
            for size in self._sizes(connection, part):
                total += size
                if taken and total > _MOST_BYTES:
                    return rows[:taken]
                taken += 1
        return rows

    def _sizes(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> list[int]:
        if not self.postgres or sum(row["size"] for row in rows) * _SQUEEZED <= _MOST_BYTES:
            return [row["size"] for row in rows]
        found = self.run(connection, self.sql.sizes, ids=ids_json(row["id"] for row in rows))
        sizes = {row["id"]: row["size"] for row in found}
        return [sizes[row["id"]] for row in rows]

    def _heads(self, connection: Connection, lanes: Mapping[Lane, int]) -> dict[Lane, list[dict[str, Any]]]:
        """Return the oldest pending rows of each key, so many each, in their order."""
        heads: dict[Lane, list[dict[str, Any]]] = {lane: [] for lane in lanes}
        if self.postgres and lanes:
            for row in self.run(connection, self.sql.heads, batch=lanes_json(lanes)):
                heads[row["destination"], row["message_key"]].append(row)
        elif lanes:
            for lane, number in lanes.items():
                heads[lane] = self.run(
                    connection, self.sql.heads, destination=lane[0], message_key=lane[1], limit=number
                )
        return heads

    def _hold(self, connection: Connection, head: str, ids: Sequence[str], ours: set[str]) -> int:
        # The head is locked until this commits: whoever finishes it then sees what waits for it. Is somebody at it
        # right now, nothing is held; the next look decides.
        if head not in ours and not self.run(connection, self.sql.blockers, ids=ids_json([head])):
            return 0
        return self._change(connection, self.sql.hold, ids=ids_json(ids))

    def mark(
        self,
        token: str,
        *,
        sent: Sequence[Message] = (),
        failed: Sequence[tuple[Failure, bool, float]] = (),
        unsent: Sequence[Message] = (),
        release: int = PAGE,
    ) -> int:
        """Write what became of leased rows, each only where the lease is still this one's; return how many were sent.

        Args:
            token: the lease's.
            sent: rows that were delivered.
            failed: rows that were not: why, whether they are dead, and the seconds until the next attempt.
            unsent: rows that were not tried; those behind a failed one of their key are held.
            release: how many waiting rows of a finished key may come next.
        """
        return self.database.transact(
            lambda connection: self._mark(connection, token, sent, failed, unsent, release=release)
        )

    def _mark(
        self,
        connection: Connection,
        token: str,
        sent: Sequence[Message],
        failed: Sequence[tuple[Failure, bool, float]],
        unsent: Sequence[Message],
        *,
        release: int,
    ) -> int:
        done = 0
        if sent:
            done = self._change(connection, self.sql.published, ids=ids_json(one.id for one in sent), token=token)
        for failure, dead, delay in failed:
            self._change(
                connection,
                self.sql.failed,
                id=failure.message.id,
                token=token,
                dead=int(dead),
                delay=delay,
                error=failure.error,
            )
        stuck = {failure.message.lane for failure, dead, _ in failed if not dead} - {None}
        behind = [message.id for message in unsent if message.lane in stuck]
        others = [message.id for message in unsent if message.lane not in stuck]
        for ids, held in ((behind, 1), (others, 0)):
            if ids:
                self._change(connection, self.sql.release, ids=ids_json(ids), token=token, held=held)
        finished = {one.lane for one in sent} | {failure.message.lane for failure, dead, _ in failed if dead}
        self._unhold(connection, [lane for lane in finished - stuck if lane is not None], release)
        return done

    def _unhold(self, connection: Connection, lanes: Sequence[Lane], limit: int) -> int:
        """Let go the next ``limit`` rows of each key."""
        if self.postgres:
            batch = lanes_json(dict.fromkeys(lanes, limit))
            return self._change(connection, self.sql.unhold, batch=batch, limit=limit) if lanes else 0
        return sum(
            self._change(connection, self.sql.unhold, destination=lane[0], message_key=lane[1], limit=limit)
            for lane in lanes
        )

    def hasten(self, kind: str, errors: Iterable[str]) -> int:
        """Let rows of a kind be tried at once that wait because a server was away; return how many.

        Args:
            kind: of the messages.
            errors: the names of the exceptions that told so.
        """
        return sum(self._in_pages(partial(self._hasten, kind=kind, error=f"{error}:%")) for error in errors)

    def _hasten(self, connection: Connection, *, kind: str, error: str) -> int:
        return self._change(connection, self.sql.hasten, kind=kind, error=error, limit=PAGE)

    def sweep(self) -> int:
        """Let go rows that are held although nothing is before them: the sibling's relay does not know that they wait.

        Looks at a bounded number of keys and goes on there the next time; returns how many rows were let go. On SQLite
        it also makes due what was written, leased or tried before this machine's clock was set back.
        """
        if not self.postgres and self._went_back():
            self.database.transact(
                lambda connection: self._change(connection, self.sql.clock_back, seconds=_LONGEST_LEASE)
            )
        return self.database.transact(self._sweep)

    def _went_back(self) -> bool:
        now, before = self.now(), self._latest
        self._latest = now
        return before is None or now < before

    def _sweep(self, connection: Connection) -> int:
        freed = 0
        for _ in range(_KEYS_SWEPT):
            destination, key = self._swept
            found = self.run(connection, self.sql.held_key, destination=destination, message_key=key)
            if not found:
                self._swept = _FIRST
                break
            self._swept = (found[0]["destination"], found[0]["message_key"])
            if self._heads(connection, {self._swept: 1})[self._swept][0]["held"]:
                freed += self._unhold(connection, [self._swept], 1)
        return freed

    def _next_due(self, connection: Connection) -> float | None:
        found = connection.execute(self.sql.next_due, self._with_now({})).scalar()
        return None if found is None else max(float(found), 0.0)

    def prune(self, retention_seconds: float) -> int:
        """Remove delivered rows older than ``retention_seconds``, in batches; return how many."""
        return self._in_pages(
            lambda connection: self._change(connection, self.sql.prune, seconds=retention_seconds, limit=PAGE)
        )

    def jobs_due(self) -> bool:
        """Say whether a job is due, or leased, that is not in its queue yet."""
        found = self.database.transact(
            lambda connection: self.run(connection, self.sql.jobs_due, seconds=_LONGEST_LEASE)
        )
        return bool(found)


def _possibly(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the first rows, as many as are small together even if compressed; to measure a row is to unpack it."""
    total = 0
    for number, row in enumerate(rows):
        total += row["size"] * _SQUEEZED
        if number >= _MEASURED and total > 2 * _MOST_BYTES:
            return rows[:number]
    return rows
