"""The queue in a table of PostgreSQL or SQLite: durable, transactional, shared by any number of processes."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from jfast_sync.backoff import backoff
from jfast_sync.errors import UnavailableError, UnsupportedError
from jfast_sync.job import Job, Lease
from jfast_sync.loop import Deadline
from jfast_sync.ports import Clock, Selection
from jfast_sync.queues.sql_dead import SqlDeadLetters
from jfast_sync.queues.sql_inspect import SqlInspection
from jfast_sync.queues.sql_leases import SqlLeases
from jfast_sync.queues.sql_rows import claimed_order, insertable, lease_of
from jfast_sync.queues.sql_transaction import SqlTransactions
from jfast_sync.queues.sql_wake import Doorbell, TableBell
from jfast_sync.redact import error_text
from jfast_sync.sql import schema
from jfast_sync.sql.session import holds
from jfast_sync.sql.sqlite_transactions import shrink_log

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["SqlQueue"]

log = logging.getLogger(__name__)

_SHORTEST_PAUSE: Final = 0.002
_TIDY_EVERY: Final = 5.0


class SqlQueue(SqlTransactions, SqlLeases, SqlDeadLetters, SqlInspection):
    """Jobs in one table, fenced by a token per claim.

    Args:
        database: where the table is.
        name: the table.
        visibility_timeout: seconds a lease runs; renewed while the job runs.
        keep_done: seconds finished jobs are kept; 0 deletes them at once.
        listen: be woken by PostgreSQL's notifications.
        listen_dsn: a direct connection for that, where the database's own leads through a pooler.
        poll_interval: seconds between two looks of an idle claimer.
        clock: SQLite's clock; PostgreSQL always uses its own.
    """

    def __init__(
        self,
        database: Database,
        *,
        name: str = "jfast_jobs",
        visibility_timeout: float = 60.0,
        keep_done: float = 0.0,
        listen: bool = True,
        listen_dsn: str | None = None,
        poll_interval: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(database, name, visibility_timeout, clock)
        self.backend = database.dialect
        self.keep_done = keep_done
        self._poll_interval = poll_interval
        self._bell = TableBell(database, name, listen=listen, listen_dsn=listen_dsn)
        self._polling = False
        self._tidy_at = time.monotonic() + _TIDY_EVERY
        self._open_waiting()
        database.after_fork.append(self._forked)

    # --- setting up, closing -------------------------------------------------------------------------------------

    def setup(self) -> None:
        schema.upgrade(self.database, self.table)

    def close(self) -> None:
        self._listener.close()
        self._doorbell.close()
        self.database.dispose()

    def _open_waiting(self) -> None:
        self._doorbell, self._listener = Doorbell(), self._bell.listener()

    def _forked(self) -> None:
        self._inherited = (self._doorbell, self._listener)  # the parent's: neither used nor closed here
        self._open_waiting()

    # --- enqueueing ------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        if holds(self.database.path):
            raise UnsupportedError(
                "this thread has a session open on the same SQLite file, and a transaction of the queue's own would "
                "wait for it: pass session= to the task's enqueue, or call jf.outbox.enqueue(session, job), so "
                "that the job is part of that session's transaction"
            )
        rows = [insertable(job) for job in jobs]
        stored = self._transact(lambda connection: self._insert(connection, rows))
        if stored:
            self.notify()
        return stored

    def notify(self) -> None:
        """Wake idle claimers, here and in other processes, after a commit."""
        self._doorbell.look_again()
        self._bell.ring()

    # --- claiming ------------------------------------------------------------------------------------------------

    def claim(self, limit: int, wait: float, selection: Selection) -> list[Lease]:
        if limit < 1:
            return []
        deadline = Deadline(wait)
        recovering = False
        self._polling = wait > 0
        try:
            while True:
                other = self._listener.prepare() if wait > 0 and self._bell.heard else None
                leases, due = self._look(limit, selection, recovering)
                if leases or deadline.passed:
                    return leases
                pause = deadline.remaining(min(self._poll(), max(due, _SHORTEST_PAUSE)))
                if self._doorbell.wait(pause, other):
                    return []
                if other is not None:
                    self._listener.drain()
                recovering = True
                self._tidy()
        finally:
            self._polling = False

    def _tidy(self) -> None:
        """Do, now and then, what can wait until nothing else is to be done."""
        if time.monotonic() < self._tidy_at:
            return
        self._tidy_at = time.monotonic() + _TIDY_EVERY
        if self.keep_done:
            self._transact(self._prune_done)
        if not self._postgres:
            with contextlib.suppress(UnavailableError):
                self.database.transact(shrink_log)

    def wake(self) -> None:
        self._doorbell.stop_waiting()

    def _poll(self) -> float:
        # Jittered, or the workers of a deploy poll in step for ever.
        return backoff(1, base=self._poll_interval, cap=self._poll_interval, jitter=0.2)

    def _look(self, limit: int, selection: Selection, recovering: bool) -> tuple[list[Lease], float]:
        """Claim once; return the leases, and in how many seconds the next job is due."""
        token = uuid.uuid4().hex
        queues = sorted(selection.queues) if selection.queues is not None else []
        shape = (len(queues), selection.tasks is not None)
        chosen = self._chosen(queues, selection.tasks)

        def look(connection: Connection) -> tuple[Sequence[Mapping[str, Any]], float]:
            if recovering:
                self._recover(connection)
            if not self._postgres:
                due = self._next_due(connection, shape, chosen)  # without the write lock
                if due > 0:
                    return [], due
            rows = self._run(
                connection,
                self._sql.claim(*shape),
                limit=limit,
                visibility=self.visibility_timeout,
                token=token,
                worker=selection.worker,
                **chosen,
            )
            if rows or not self._postgres:
                return rows, 0.0
            return rows, self._next_due(connection, shape, chosen)

        if selection.queues is not None and not queues:
            return [], float("inf")
        rows, due = self._transact(look)
        return self._leases(rows), due

    def _chosen(self, queues: list[str], tasks: frozenset[str] | None) -> dict[str, Any]:
        """Return the claim's parameters that say which queues and tasks."""
        if self._postgres:
            return {"queues": queues, "tasks": sorted(tasks or ())}
        return {f"queue{n}": queue for n, queue in enumerate(queues)} | {"tasks": json.dumps(sorted(tasks or ()))}

    def _next_due(self, connection: Connection, shape: tuple[int, bool], chosen: Mapping[str, Any]) -> float:
        found = connection.execute(self._sql.next_due(*shape), self._with_now(dict(chosen))).scalar()
        return float("inf") if found is None else float(found)

    def _leases(self, rows: Sequence[Mapping[str, Any]]) -> list[Lease]:
        leases: list[Lease] = []
        broken: list[dict[str, Any]] = []
        for row in sorted(rows, key=claimed_order):
            try:
                leases.append(lease_of(row))
            except (ValueError, TypeError, AssertionError) as exc:
                reason = f"this row is not a job: {error_text(exc)}"
                broken.append({"id": row["id"], "token": row["lease_token"], "error": reason, "traceback": None})
        if broken:
            log.error("%d stored jobs cannot be decoded and are dead letters now", len(broken))
            self._transact(lambda connection: self._batch(connection, self._sql.bury, broken))
        return leases
