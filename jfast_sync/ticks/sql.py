"""Ticks claimed in a table: the row is part of the transaction that enqueues the tick's job."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jfast_sync.ports import Claimed, ClaimLostError, TickClaim
from jfast_sync.redact import error_text
from jfast_sync.sql.failures import LockTimeout, translate, translated

if TYPE_CHECKING:
    from jfast_sync.ports import Clock
    from jfast_sync.sql.engine import Database

__all__ = ["SqlTickStore"]

log = logging.getLogger(__name__)

_WAIT: Final = 500  # milliseconds for somebody else's open claim: a schedule that ticks every second misses none by it
_SKEW: Final = 60_000_000  # microseconds by which one process's clock may be ahead of another's
_PRUNED_AT_ONCE: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_NOW: Final = text("SELECT clock_timestamp()")
# The condition keeps ticks in order: one that was missed long ago must not fire after a later one. Two claims at the
# same moment may both pass it; that the same tick is never won twice is the primary key's doing. Who was stopped inside
# the claim has to pass it once more before the commit.
_CLAIM: Final = (
    "INSERT INTO jfast_schedule_ticks (name, fire_at, claimed_by, claimed_at) SELECT :name, {tick}, :by, {now} "
    "WHERE {recent} NOT EXISTS (SELECT 1 FROM jfast_schedule_ticks WHERE name = :name AND fire_at > {tick}) "
    "ON CONFLICT (name, fire_at) DO NOTHING"
)
_CLAIM_POSTGRES: Final = text(
    _CLAIM.format(tick="CAST(:tick AS timestamptz)", now="clock_timestamp()", recent="")
    .replace("SELECT :name", "SELECT CAST(:name AS text)")
    .replace(":by", "CAST(:by AS text)")
)
# SQLite has no clock that processes share: one that is fast jumps ahead, and must not make the others miss the ticks
# between, so young ticks are free of the order.
_CLAIM_SQLITE: Final = text(_CLAIM.format(tick=":tick", now=":now", recent=":tick > :now - :skew OR"))
_LATER: Final = text("SELECT EXISTS (SELECT 1 FROM jfast_schedule_ticks WHERE name = :name AND fire_at > :tick)")
_GIVE_BACK: Final = text("DELETE FROM jfast_schedule_ticks WHERE name = :name AND fire_at = :tick AND claimed_by = :by")
# One look into the primary key per schedule, however many ticks are kept of each.
_LATEST: Final = (
    "SELECT wanted.value, (SELECT max(fire_at) FROM jfast_schedule_ticks WHERE name = wanted.value) FROM {names}"
)
_LATEST_POSTGRES: Final = text(_LATEST.format(names="json_array_elements_text(CAST(:names AS json)) AS wanted(value)"))
_LATEST_SQLITE: Final = text(_LATEST.format(names="json_each(:names) AS wanted"))
_OLD: Final = (
    "SELECT name, fire_at FROM jfast_schedule_ticks AS old WHERE fire_at < {before} AND EXISTS "
    "(SELECT 1 FROM jfast_schedule_ticks AS newer WHERE newer.name = old.name AND newer.fire_at > old.fire_at) "
    "ORDER BY fire_at LIMIT :limit"
)
_PRUNE_POSTGRES: Final = text(
    "DELETE FROM jfast_schedule_ticks AS t USING ("
    + _OLD.format(before="(SELECT clock_timestamp() - CAST(:retention AS interval))")
    + " FOR UPDATE SKIP LOCKED) AS gone WHERE t.name = gone.name AND t.fire_at = gone.fire_at"
)
_PRUNE_SQLITE: Final = text(
    "DELETE FROM jfast_schedule_ticks WHERE (name, fire_at) IN (" + _OLD.format(before=":before") + ")"
)


class SqlTickStore:
    """Implements :class:`jfast_sync.ports.TickStore` in the table ``jfast_schedule_ticks``; from any thread.

    Args:
        database: where the table is.
        clock: SQLite's clock; PostgreSQL always uses its own.
    """

    store = "database"

    def __init__(self, database: Database, *, clock: Clock | None = None) -> None:
        self._database = database
        self._postgres = database.dialect == "postgresql"
        self._clock = clock

    def now(self) -> datetime:
        if not self._postgres:
            return self._clock.now() if self._clock is not None else datetime.now(UTC)
        found: datetime = self._database.transact(lambda connection: connection.execute(_NOW).scalar_one())
        return found.astimezone(UTC)

    def latest(self, names: Sequence[str]) -> dict[str, datetime]:
        statement = _LATEST_POSTGRES if self._postgres else _LATEST_SQLITE
        asked = {"names": json.dumps(list(names))}
        rows = self._database.transact(lambda connection: connection.execute(statement, asked).all())
        return {name: self._instant(tick) for name, tick in rows if tick is not None}

    @contextmanager
    def claiming(self, name: str, tick: datetime, *, by: str) -> Iterator[TickClaim]:
        with translated(), Session(self._database.control) as session:
            try:
                won = self._insert(session, name, tick, by)
            except DBAPIError as exc:
                if not isinstance(translate(exc), LockTimeout):
                    raise
                session.rollback()
                yield TickClaim(outcome=Claimed.BUSY)
                return
            if not won:
                session.rollback()  # let go of SQLite's write lock
                yield TickClaim(outcome=Claimed.LOST)
                return
            apart = False

            def detach() -> None:
                nonlocal apart
                self._check_order(session, name, tick)
                if not self._postgres:
                    session.commit()  # its only write lock must not wait for a network
                apart = True

            try:
                yield TickClaim(outcome=Claimed.WON, session=session, detach=detach)
            except BaseException:
                if apart and not self._postgres:
                    self._give_back(name, tick, by)
                raise
            if not apart:
                self._check_order(session, name, tick)
            session.commit()

    def _check_order(self, session: Session, name: str, tick: datetime) -> None:
        """Raise ClaimLostError where others have gone on to a later tick while this process was stopped."""
        if self._postgres and session.execute(_LATER, {"name": name, "tick": tick}).scalar():
            raise ClaimLostError(f"a later tick than {tick.isoformat()} is claimed")

    def _give_back(self, name: str, tick: datetime, by: str) -> None:
        fields = {"name": name, "tick": self._stored(tick), "by": by}
        try:
            self._database.transact(lambda connection: connection.execute(_GIVE_BACK, fields))
        except Exception as exc:
            why = error_text(exc)
            log.warning("schedule %s: the tick of %s is lost, its claim stays: %s", name, tick.isoformat(), why)

    def _insert(self, session: Session, name: str, tick: datetime, by: str) -> bool:
        fields: dict[str, Any] = {"name": name, "tick": self._stored(tick), "by": by}
        connection = session.connection()
        if self._postgres:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_WAIT}")
            return connection.execute(_CLAIM_POSTGRES, fields).rowcount == 1
        fields |= {"now": self._stored(self.now()), "skew": _SKEW}
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {_WAIT}")
        try:
            return connection.execute(_CLAIM_SQLITE, fields).rowcount == 1
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience}")

    def prune(self, retention: timedelta) -> int:
        statement, fields = _PRUNE_POSTGRES, {"retention": retention, "limit": _PRUNED_AT_ONCE}
        if not self._postgres:
            before = self._stored(self.now() - retention)
            statement, fields = _PRUNE_SQLITE, {"before": before, "limit": _PRUNED_AT_ONCE}
        total = 0
        while True:
            gone = self._database.transact(lambda connection: connection.execute(statement, fields).rowcount)
            total += gone
            if gone < _PRUNED_AT_ONCE:
                return total

    def close(self) -> None:
        """The database is its owner's to close."""

    def _stored(self, value: datetime) -> Any:
        return value if self._postgres else (value - _EPOCH) // _MICROSECOND

    def _instant(self, value: Any) -> datetime:
        instant: datetime = value if self._postgres else _EPOCH + timedelta(microseconds=value)
        return instant.astimezone(UTC)
