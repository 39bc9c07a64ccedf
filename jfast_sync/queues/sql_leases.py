"""What becomes of leases in the SQL queue: outcomes written in batches, renewals, and the leases of the vanished.

Every statement changes a row only where its token is current, and passes over rows that somebody has locked.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from jfast_sync.job import Lease
from jfast_sync.outcome import Bury, Done, Outcome, Release, Retry, Settlement
from jfast_sync.ports import Held, Settled
from jfast_sync.queues.sql_base import CHUNK, SqlTable
from jfast_sync.queues.sql_rows import settled_fields

__all__ = ["SqlLeases"]

log = logging.getLogger(__name__)

VANISHED: Final = "its worker vanished: the lease ran out before the job was finished"
_BUSY_PAUSES: Final = (0.001, 0.005, 0.02)


class SqlLeases(SqlTable):
    """Implements ``settle``, ``extend`` and ``recover`` of :class:`jfast_sync.ports.Queue`."""

    keep_done: float = 0.0
    _poll_interval: float = 1.0
    _polling: bool = False

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        answers: dict[int, Settled] = {}
        for part in _one_per_job([settlement.lease for settlement in settlements]):
            answers |= self._settle_until_free([(position, settlements[position]) for position in part])
        if any(_soon(settlement, self._poll_interval) for settlement in settlements):
            self.notify()
        return [answers[position] for position in range(len(settlements))]

    def _settle_until_free(self, left: list[tuple[int, Settlement]]) -> dict[int, Settled]:
        answers: dict[int, Settled] = {}
        for pause in (*_BUSY_PAUSES, None):
            applied, current = self._settle([settlement for _, settlement in left])
            for position, settlement in left:
                answers[position] = _settled(settlement.lease.job.id, applied, current)
            left = [(position, one) for position, one in left if answers[position] is Settled.BUSY]
            if not left or pause is None:
                break
            # Mostly another claimer, which locks what it sees for a moment before it notices that it is taken.
            time.sleep(pause)
        return answers

    def _settle(self, settlements: Sequence[Settlement]) -> tuple[set[str], set[str]]:
        """Write outcomes in one transaction; return the ids written, and those that are locked but still ours."""
        if not settlements:
            return set(), set()
        groups: dict[type[Outcome], list[dict[str, Any]]] = {}
        for settlement in sorted(settlements, key=lambda one: one.lease.job.id):
            groups.setdefault(type(settlement.outcome), []).append(settled_fields(settlement))
        return self._transact(lambda connection: self._write(connection, groups))

    def _write(
        self, connection: Connection, groups: Mapping[type[Outcome], list[dict[str, Any]]]
    ) -> tuple[set[str], set[str]]:
        statements = {
            Done: self._sql.keep if self.keep_done else self._sql.done,
            Retry: self._sql.retry,
            Bury: self._sql.bury,
            Release: self._sql.release,
        }
        applied: set[str] = set()
        for kind, items in groups.items():
            applied.update(row["id"] for row in self._batch(connection, statements[kind], items))
        missed = [item for items in groups.values() for item in items if item["id"] not in applied]
        return applied, self._current(connection, missed)

    def _current(self, connection: Connection, missed: Sequence[Mapping[str, Any]]) -> set[str]:
        if not missed:
            return set()
        asked = [{"id": item["id"], "token": item["token"]} for item in missed]
        return {row["id"] for row in self._batch(connection, self._sql.current, asked)}

    def extend(self, leases: Sequence[Lease]) -> list[Held]:
        answers: dict[int, Held] = {}
        for part in _one_per_job(leases):
            answers |= zip(part, self._extend([leases[position] for position in part]), strict=True)
        return [answers[position] for position in range(len(leases))]

    def _extend(self, leases: Sequence[Lease]) -> list[Held]:
        if not leases:
            return []
        items = [{"id": lease.job.id, "token": lease.token} for lease in sorted(leases, key=lambda one: one.job.id)]

        def extend(connection: Connection) -> tuple[dict[str, bool], set[str]]:
            rows = self._batch(connection, self._sql.extend, items, visibility=self.visibility_timeout)
            renewed = {row["id"]: bool(row["cancel_requested"]) for row in rows}
            return renewed, self._current(connection, [item for item in items if item["id"] not in renewed])

        renewed, current = self._transact(extend)
        return [_held(lease.job.id, renewed, current) for lease in leases]

    def recover(self) -> int:
        if self._polling:
            return 0  # an idle claimer does it with every poll, in the same transaction
        total = 0
        while True:
            found = self._transact(self._recover)
            total += found
            if found < CHUNK:
                break
        if total:
            self.notify()
        if self.keep_done:
            self._transact(self._prune_done)
        return total

    def _prune_done(self, connection: Connection) -> int:
        return self._change(connection, self._sql.prune_done, seconds=self.keep_done, limit=CHUNK)

    def _recover(self, connection: Connection) -> int:
        if self._failing_since is not None:
            # The first word after an outage, if it is over: how long it was is known when this has succeeded.
            connection.execute(self._sql.touch)
            return 0
        if time.monotonic() < self._no_recovery_until:
            return 0
        if not self._postgres and not self._run(connection, self._sql.lapsed):
            return 0
        rows = self._run(connection, self._sql.recover, limit=CHUNK, error=VANISHED, grace=self.visibility_timeout)
        if rows:
            log.warning("%d jobs whose worker vanished are available again", len(rows))
        return len(rows)


def _one_per_job(leases: Sequence[Lease]) -> list[list[int]]:
    """Split positions so that no part names a job twice: the database answers by id, and tells no tokens apart.

    A worker holds two leases of one job when it lost the first and was the one that claimed it again.
    """
    parts: list[list[int]] = []
    met: Counter[str] = Counter()
    for position, lease in enumerate(leases):
        number = met[lease.job.id]
        met[lease.job.id] += 1
        if number == len(parts):
            parts.append([])
        parts[number].append(position)
    return parts


def _soon(settlement: Settlement, poll_interval: float) -> bool:
    """Whether an idle claimer has to be told, because its next poll would come too late."""
    match settlement.outcome:
        case Release():
            return True
        case Retry(until=None) as retry:
            return retry.delay < poll_interval
        case Retry():
            return True
        case _:
            return False


def _settled(job_id: str, applied: set[str], current: set[str]) -> Settled:
    if job_id in applied:
        return Settled.APPLIED
    return Settled.BUSY if job_id in current else Settled.REFUSED


def _held(job_id: str, renewed: Mapping[str, bool], current: set[str]) -> Held:
    if job_id in renewed:
        return Held.CANCEL if renewed[job_id] else Held.YES
    return Held.BUSY if job_id in current else Held.LOST
