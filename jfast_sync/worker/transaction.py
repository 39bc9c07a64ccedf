"""A handler in its one transaction: its writes, its claims and the job's completion commit together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jfast_sync.backoff import backoff
from jfast_sync.errors import ConfigError, LeaseLostError, SchemaError, UnavailableError
from jfast_sync.inbox import claim_on, claimed
from jfast_sync.job import Lease
from jfast_sync.outcome import Done, Outcome, Release, Retry, decide
from jfast_sync.ports import Queue, SharesTransaction
from jfast_sync.redact import error_text
from jfast_sync.sql.holders import end_stale, mark
from jfast_sync.worker.attempt import Attempt, Committed, Unknown

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database
    from jfast_sync.sql.session import AttemptTransaction

__all__ = ["JOBS", "NotBegun", "Transactions"]

#: The inbox consumer under which a job's own id is claimed where the queue does not share the session's database.
JOBS: Final = "jfast.job"

_OPENING: Final = 60.0  # seconds to wait for a connection and for somebody's key, on top of the job's own timeout
_WAIT_BASE, _WAIT_CAP = 0.5, 10.0


class NotBegun(Exception):
    """The handler was not called, through no fault of the job; ``outcome`` is an uncounted retry."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the handler was not called")
        self.outcome = outcome


class Transactions:
    """Runs handlers inside the transaction that also writes their completion.

    Args:
        queue: whose jobs they are.
        database: where sessions are opened; None where none is configured.
    """

    def __init__(self, queue: Queue, database: Database | None) -> None:
        self._queue = queue
        self._database = database
        self._refusals = 0  # since a transaction could last be opened

    def run(
        self, attempt: Attempt, key: str | None, handler: Callable[[Session], None]
    ) -> tuple[Done | Committed | Unknown, bool]:
        """Run ``handler`` in a transaction and commit it, if the attempt still may.

        Args:
            attempt: who asks for the right to commit.
            key: the idempotency key to claim first, or None.
            handler: gets the session; not called where the key, or the job itself, was claimed before.

        Returns:
            How it ended, and whether the handler was skipped as a duplicate.

        Raises:
            NotBegun: no transaction could be opened, or somebody holds the key.
            LeaseLostError: the token is no longer current; everything was rolled back.
            Exception: whatever the handler or the database raised; everything was rolled back.
        """
        if self._database is None:
            raise ConfigError(
                f"task {attempt.lease.job.task!r} needs a database, and none is configured: "
                'put "database" into [plugins] enabled'
            )
        attempt.restart_clock(_OPENING)
        transaction = self._open(self._database, attempt.lease)
        try:
            attempt.attach(transaction)
            fresh = self._claim(transaction, attempt, key)
            if attempt.stop is not None:
                raise NotBegun(Release())
            if fresh:
                attempt.restart_clock()
                handler(transaction.session)
            transaction.session.flush()
            done = self._complete(transaction.session, attempt)
            if not attempt.may_commit():
                transaction.rollback()
                return Done(), False  # overruled by why it was told to stop
            try:
                transaction.commit()
            except Exception as exc:
                return Unknown(decide(attempt.lease, exc, attempt.policy)), False
            return done, not fresh
        finally:
            attempt.detach()
            transaction.close()

    def committed(self, lease: Lease) -> bool:
        """Find out in a fresh transaction whether an attempt whose reply was lost has committed.

        Raises:
            UnavailableError: the database cannot say now.
        """
        if self._database is None:
            return False
        with self._database.session() as session:
            if (shared := self._shared(session)) is None:
                return claimed(session, lease.job.id, consumer=JOBS, tenant_id=lease.job.tenant_id)
        return shared.committed(lease)

    def shares(self) -> bool:
        """Say whether the queue lives in the sessions' database."""
        if self._database is None:
            return False
        with self._database.session() as session:
            return self._shared(session) is not None

    def _open(self, database: Database, lease: Lease) -> AttemptTransaction:
        try:
            end_stale(database, lease)  # whoever ran it before may be paused, and hold the key and rows we need
            transaction = database.attempt(tenant_id=lease.job.tenant_id)
        except (UnavailableError, SchemaError) as exc:
            self._refusals += 1  # growing pauses, or a queue elsewhere would hand the same jobs round and round
            raise NotBegun(_put_off(exc, self._refusals)) from exc
        self._refusals = 0
        return transaction

    def _shared(self, session: Session) -> SharesTransaction | None:
        queue = self._queue
        return queue if isinstance(queue, SharesTransaction) and queue.shares(session) else None

    def _claim(self, transaction: AttemptTransaction, attempt: Attempt, key: str | None) -> bool:
        """Claim before the handler runs, so that a duplicate runs nothing and a concurrent one waits here.

        On the connection and not in the session, whose rollback by the handler would take the claims back.
        """
        job = attempt.lease.job
        task = attempt.task
        wanted = [] if self._shared(transaction.session) is not None else [(job.id, JOBS, job.tenant_id)]
        if key is not None and task is not None:
            # A subscriber's claim is shared with the asynchronous sibling's, which knows of no tenants.
            wanted.append((key, task.name, None if task.subscribes_to is not None else job.tenant_id))
        try:
            transaction.backend = mark(transaction.connection, attempt.lease)
            for message_id, consumer, tenant_id in wanted:
                if not claim_on(transaction.connection, message_id, consumer=consumer, tenant_id=tenant_id):
                    return False
        except (UnavailableError, SchemaError) as exc:  # also a lock timeout, and a right that was taken away
            raise NotBegun(_put_off(exc, 1)) from exc
        return True

    def _complete(self, session: Session, attempt: Attempt) -> Done | Committed:
        shared = self._shared(session)
        if shared is None:
            return Done()
        if not shared.complete_in(session, attempt.lease):
            attempt.lose()
            raise LeaseLostError(f"job {attempt.lease.job.id} is no longer this worker's; its writes were rolled back")
        return Committed()


def _put_off(exc: BaseException, times: int) -> Retry:
    delay = backoff(times, base=_WAIT_BASE, cap=_WAIT_CAP, jitter=0.5)
    return Retry(delay, error=error_text(exc), refund=True)
