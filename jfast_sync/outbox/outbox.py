"""``jf.outbox``: jobs enqueued through the caller's session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jfast_sync.errors import UnsupportedError
from jfast_sync.job import Job
from jfast_sync.ports import SharesTransaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.client import QueueClient

__all__ = ["Outbox"]


class Outbox:
    """Enqueue inside a session's transaction: the job exists if and only if that transaction commits."""

    def __init__(self, queue: QueueClient) -> None:
        self._queue = queue

    def enqueue(self, session: Session, job: Job) -> str:
        """Store one job in the session's transaction and return its id; workers wake when it commits.

        A job whose id is already stored is left as it is.

        Raises:
            PayloadError: the payload cannot be stored; the session's transaction is untouched.
            UnsupportedError: the queue does not live in the session's database.
        """
        return self.enqueue_many(session, [job])[0]

    def enqueue_many(self, session: Session, jobs: Iterable[Job]) -> list[str]:
        """Store many jobs in the session's transaction and return their ids, in order."""
        prepared = [self._queue.prepare(job) for job in jobs]
        backend = self._queue.backend
        if not isinstance(backend, SharesTransaction) or not backend.shares(session):
            raise UnsupportedError(
                f"the {backend.backend} queue does not live in this session's database, so a job cannot join its "
                'transaction; put the queue into that database ([plugin.queue] backend = "auto"), '
                "or use queue.enqueue(job) after the commit"
            )
        backend.enqueue_in(session, prepared)
        return [job.id for job in prepared]
