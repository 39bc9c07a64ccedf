"""The queue inside somebody's session: jobs that exist, and completions that count, if and only if it commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from jfast_sync.job import Job, Lease
from jfast_sync.queues.sql_base import SqlTable
from jfast_sync.queues.sql_rows import insertable
from jfast_sync.sql.failures import translated
from jfast_sync.sql.joining import joined
from jfast_sync.sql.place import in_database
from jfast_sync.sql.session import on_commit

__all__ = ["SqlTransactions"]

_ROWS_AT_ONCE = 5000


class SqlTransactions(SqlTable):
    """Implements :class:`jfast_sync.ports.SharesTransaction`."""

    keep_done: float = 0.0

    def shares(self, session: Session) -> bool:
        return in_database(session, self.database, any_schema=True)

    def enqueue_in(self, session: Session, jobs: Sequence[Job]) -> list[str]:
        rows = [insertable(job) for job in jobs]
        with translated():
            stored = self._insert(joined(session), rows)
        if stored:
            on_commit(session, self.notify)
        return stored

    def complete_in(self, session: Session, lease: Lease) -> bool:
        statement = self._sql.complete_keeping if self.keep_done else self._sql.complete
        changed = self._change(session.connection(), statement, id=lease.job.id, token=lease.token)
        return changed == 1

    def committed(self, lease: Lease) -> bool:
        return not self._transact(
            lambda connection: self._run(connection, self._sql.committed, id=lease.job.id, token=lease.token)
        )

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        stored: list[str] = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            stored += [row["id"] for row in self._batch(connection, self._sql.insert, part)]
        fresh = set(stored)
        return [row["id"] for row in rows if row["id"] in fresh and not fresh.discard(row["id"])]  # type: ignore[func-returns-value]
