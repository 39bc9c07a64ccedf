"""Jobs that wait in the outbox for their time: to be seen, counted and cancelled like those in the queue.

They stay here until they are due, whatever the broker: the database's clock decides, the id is known all the while, and
the asynchronous sibling's relay, which knows no delays, leaves the row alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import TextClause

from jfast_sync.errors import PayloadError
from jfast_sync.job import Job
from jfast_sync.outbox.dead import ids_json, message_of
from jfast_sync.outbox.rows import instant, row_ids
from jfast_sync.ports import Cancelled, Inspectable, JobRow

if TYPE_CHECKING:
    from jfast_sync.outbox.table import OutboxTable

__all__ = ["Everywhere", "WaitingJobs"]

_COUNTED: Final = 100_000
_DELAYED: Final = "delayed"
_STATES: Final = ("running", "ready", _DELAYED, "dead", "done")


class WaitingJobs:
    """The outbox's jobs that are on their way to the queue.

    Args:
        table: the outbox.
    """

    def __init__(self, table: OutboxTable) -> None:
        self._table = table
        self._sql = table.sql

    def delayed(self) -> int:
        """Count the jobs whose time has not come; ends at 100,000."""
        return int(self._rows(self._sql.delayed, cap=_COUNTED)[0]["number"])

    def jobs(self, *, task: str | None, queue: str | None, tenant_id: str | None, limit: int) -> list[JobRow]:
        """List the jobs whose time has not come, the next due first."""
        rows = self._rows(self._sql.waiting, task=task, queue=queue, tenant_id=tenant_id, limit=limit)
        return [found for row in rows if (found := _job_row(row)) is not None]

    def find(self, job_id: str) -> JobRow | None:
        """Return a job that has not been sent yet, due or not; None where there is none."""
        rows = self._rows(self._sql.unsent, ids=ids_json(row_ids(job_id)))
        return next((found for row in rows if (found := _job_row(row)) is not None and found.job.id == job_id), None)

    def cancel(self, job_id: str) -> bool:
        """Remove a job that has not been sent, and is not being sent right now; return whether it was there."""
        return bool(self._rows(self._sql.cancel, ids=ids_json(row_ids(job_id))))

    def _rows(self, statement: TextClause, **parameters: Any) -> list[dict[str, Any]]:
        return self._table.database.transact(lambda connection: self._table.run(connection, statement, **parameters))


class Everywhere:
    """A queue's jobs and those on their way to it, as one :class:`~jfast_sync.ports.Inspectable`."""

    def __init__(self, queue: Inspectable, waiting: WaitingJobs) -> None:
        self._queue = queue
        self._waiting = waiting

    def find(self, job_id: str) -> JobRow | None:
        return self._queue.find(job_id) or self._waiting.find(job_id)

    def jobs(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        limit: int = 50,
    ) -> list[JobRow]:
        found = self._queue.jobs(state=state, task=task, queue=queue, tenant_id=tenant_id, limit=limit)
        if state in (None, _DELAYED):
            found += self._waiting.jobs(task=task, queue=queue, tenant_id=tenant_id, limit=limit)
        return sorted(found, key=lambda row: _STATES.index(row.state))[:limit]

    def cancel(self, job_id: str) -> Cancelled:
        return Cancelled.REMOVED if self._waiting.cancel(job_id) else self._queue.cancel(job_id)


def _job_row(row: dict[str, Any]) -> JobRow | None:
    try:
        job: Job = message_of(row, row["payload"]).job()
    except PayloadError:
        return None  # the relay makes it a dead message, with the reason
    due = None if row["due_at"] is None else instant(row["due_at"])
    job = replace(job, available_at=due, created_at=instant(row["created_at"]), error=row["last_error"])
    return JobRow(job=job, state=_DELAYED if row["early"] else "ready")
