"""Dead letters of the SQL queue: listed newest first, put back, thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jfast_sync.job import DeadJob
from jfast_sync.ports import DeadFilter
from jfast_sync.queues.sql_base import CHUNK, SqlTable
from jfast_sync.queues.sql_rows import dead_job, micros

__all__ = ["SqlDeadLetters"]


class SqlDeadLetters(SqlTable):
    """Implements :class:`jfast_sync.ports.DeadLetters`."""

    def dead(self, where: DeadFilter, *, limit: int, after: str | None = None) -> list[DeadJob]:
        conditions, parameters = _conditions(where)
        if after is not None:
            conditions += (
                f" AND ({{dead_at}}, j.id) < (SELECT coalesce(a.died_at, a.created_at), a.id FROM {self.table} AS a "
                "WHERE a.id = :after)"
            )
            parameters["after"] = after
        statement = self._sql.dead(conditions)
        rows = self._transact(lambda connection: self._run(connection, statement, limit=limit, **parameters))
        return [dead_job(row) for row in rows]

    def find_dead(self, job_id: str) -> DeadJob | None:
        statement = self._sql.dead(" AND j.id = :id")
        rows = self._transact(lambda connection: self._run(connection, statement, limit=1, id=job_id))
        return dead_job(rows[0]) if rows else None

    def revive(self, ids: Sequence[str]) -> list[str]:
        revived = self._by_ids(self._sql.revive, ids)
        if revived:
            self.notify()
        return revived

    def revive_where(self, where: DeadFilter) -> int:
        total, conditions = 0, _conditions(where)
        statement = self._sql.dead(conditions[0])
        while True:
            rows = self._transact(lambda connection: self._run(connection, statement, limit=CHUNK, **conditions[1]))
            if not rows:
                return total
            revived = self.revive([row["id"] for row in rows])
            total += len(revived)
            if not revived:
                return total

    def discard(self, ids: Sequence[str]) -> list[str]:
        return self._by_ids(self._sql.discard, ids)

    def _by_ids(self, statement: Any, ids: Sequence[str]) -> list[str]:
        done: set[str] = set()
        for start in range(0, len(ids), CHUNK):
            items = [{"id": one} for one in sorted(ids[start : start + CHUNK])]
            rows = self._transact(partial(self._batch, statement=statement, items=items))
            done.update(row["id"] for row in rows)
        return [one for one in dict.fromkeys(ids) if one in done]


def _conditions(where: DeadFilter) -> tuple[str, dict[str, Any]]:
    text = ""
    parameters: dict[str, Any] = {}
    for column, value in (("task", where.task), ("tenant_id", where.tenant_id)):
        if value is not None:
            text += f" AND j.{column} = :{column}"
            parameters[column] = value
    if where.since is not None:
        text += " AND {dead_at} >= {since}"
        parameters["since"] = micros(where.since)
    return text, parameters
