"""Looking into the SQL queue: counts, listings, one job by its id, cancellation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from jfast_sync.errors import PayloadError
from jfast_sync.ports import Cancelled, JobRow, Stats
from jfast_sync.queues.sql_base import Rows, SqlTable
from jfast_sync.queues.sql_rows import job_row

__all__ = ["SqlInspection"]

_OLD = 300.0  # seconds
_OLDEST_SNAPSHOT = text(
    "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL "
    "ORDER BY xact_start LIMIT 1"
)
_STATES = ("running", "ready", "delayed", "dead", "done")


class SqlInspection(SqlTable):
    """Implements :class:`jfast_sync.ports.Inspectable`, ``stats`` and ``record``."""

    def find(self, job_id: str) -> JobRow | None:
        rows = self._transact(lambda connection: self._run(connection, self._sql.find, id=job_id))
        return job_row(rows[0]) if rows else None

    def jobs(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        limit: int = 50,
    ) -> list[JobRow]:
        if state is not None and state not in _STATES:
            raise PayloadError(f"{state!r} is not a state of a job; one of {', '.join(_STATES)}")
        conditions = ""
        parameters: dict[str, Any] = {}
        for column, value in (("task", task), ("queue", queue), ("tenant_id", tenant_id)):
            if value is not None:
                conditions += f" AND j.{column} = :{column}"
                parameters[column] = value

        def look(connection: Connection) -> Rows:
            rows: Rows = []
            for one in (state,) if state is not None else _STATES:
                if len(rows) < limit:
                    statement = self._sql.listing(one, conditions)
                    rows += self._run(connection, statement, limit=limit - len(rows), **parameters)
            return rows

        return [job_row(row) for row in self._transact(look)]

    def cancel(self, job_id: str) -> Cancelled:
        def cancel(connection: Connection) -> Cancelled:
            if self._run(connection, self._sql.remove, id=job_id):
                return Cancelled.REMOVED
            if self._run(connection, self._sql.tell, id=job_id):
                return Cancelled.TOLD
            rows = self._run(connection, self._sql.find, id=job_id)
            return Cancelled.DEAD if rows and rows[0]["status"] == "dead" else Cancelled.UNKNOWN

        return self._transact(cancel)

    def record(self, done: Mapping[str, int], failed: Mapping[str, int]) -> None:
        items = [
            {"task": task, "done": done.get(task, 0), "failed": failed.get(task, 0)}
            for task in sorted(done.keys() | failed.keys())
        ]
        if items:
            self._transact(lambda connection: self._batch(connection, self._sql.record, items))

    def stats(self) -> Stats:
        def count(connection: Connection) -> Stats:
            if self._postgres:
                # Half the table may be dead letters: the planner would read all of it rather than the index.
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                connection.execute(text("SET LOCAL jit = off"))
            ready, delayed, running, dead = connection.execute(self._sql.counts, self._with_now({})).one()
            oldest = connection.execute(self._sql.oldest, self._with_now({})).scalar() if ready else None
            counters = self._run(connection, self._sql.counters)
            return Stats(
                ready=ready,
                delayed=delayed,
                running=running,
                dead=dead,
                oldest_ready=None if oldest is None else max(float(oldest), 0.0),
                done_by_task={row["task"]: row["done"] for row in counters if row["done"]},
                failed_by_task={row["task"]: row["failed"] for row in counters if row["failed"]},
                warnings=self._warnings(connection),
            )

        return self._transact(count)

    def _warnings(self, connection: Connection) -> list[str]:
        if self._postgres:
            return _old_transactions(connection)
        mode = connection.execute(text("PRAGMA journal_mode")).scalar()
        if mode == "wal":
            return []
        warning = (
            f"SQLite's journal mode is {mode}, not WAL, on {self.database.path}: its file system may be a network's; "
            "use a local disk"
        )
        return [warning]


def _old_transactions(connection: Connection) -> list[str]:
    """Name the transaction that keeps vacuum from clearing away finished jobs, which every claim has to pass."""
    row = connection.execute(_OLDEST_SNAPSHOT).first()
    if row is None or row.age is None or row.age < _OLD:
        return []
    return [f"a transaction (pid {row.pid}) has been open for {row.age:.0f} s and keeps vacuum away: claims slow down"]
