"""``jf.outbox``: jobs and events written through the caller's session, so that they exist if and only if it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.errors import PayloadError, UndeliverableEvent, UnsupportedError
from jfast_sync.event import Event, subscriber_job_id
from jfast_sync.inbox import claim_once
from jfast_sync.job import Job
from jfast_sync.outbox.rows import EVENT, JOB, derived, event_row, job_row, row_beside
from jfast_sync.outbox.table import OutboxTable
from jfast_sync.payload import encode
from jfast_sync.ports import SharesTransaction
from jfast_sync.sql.joining import check_session
from jfast_sync.sql.place import in_database
from jfast_sync.sql.session import on_commit

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.client import QueueClient
    from jfast_sync.tasks.registry import Registry
    from jfast_sync.tasks.spec import Task

__all__ = ["Outbox"]

#: The inbox consumer under which it is noted that a subscriber's job was written for an event.
_PUBLISHED: Final = "jfast.published "
_LONGEST_TOPIC: Final = 255
_LONGEST_WAIT: Final = (
    30.0  # seconds for another transaction that publishes the same event; SQLite's writers wait as long
)


class Outbox:
    """Enqueue and publish inside a session's transaction: what is written exists if and only if it commits.

    Where the queue lives in the session's database a job goes straight into it. Otherwise it is a row of
    ``jfast_outbox``, which a relay brings to the queue after the commit.

    ``has_queue``: whether there is a queue at all.

    Args:
        queue: the app's queue.
        tasks: the declared tasks, subscribers among them.
        table: the outbox of the primary database; None where there is none, or the plugin is off.
        has_queue: whether the configuration has a queue at all.
        has_bus: whether events go to an event bus too.
        max_bytes: the largest data of an event.
        wake: called after a commit that a relay has work from.
        ready: called before anything is written; makes sure that the tables exist.
    """

    def __init__(
        self,
        queue: QueueClient,
        tasks: Registry,
        table: OutboxTable | None,
        *,
        has_queue: bool = True,
        has_bus: bool = False,
        max_bytes: int = 1_048_576,
        wake: Callable[[], None] = lambda: None,
        ready: Callable[[Session], None] = lambda _session: None,
    ) -> None:
        self._queue = queue
        self._tasks = tasks
        self._table = table
        self.has_queue = has_queue
        self._has_bus = has_bus
        self._max_bytes = max_bytes
        self._wake = wake
        self._ready = ready

    def enqueue(self, session: Session, job: Job) -> str:
        """Store one job in the session's transaction and return its id; it starts after the commit.

        A job whose id is already stored is left as it is.

        Raises:
            PayloadError: the payload cannot be stored; the session's transaction is untouched.
            SchemaError: the tables are not there; the session's transaction is untouched.
            UnsupportedError: neither the queue nor the outbox lives in the session's database.
        """
        return self.enqueue_many(session, [job])[0]

    def enqueue_many(self, session: Session, jobs: Iterable[Job]) -> list[str]:
        """Store many jobs in the session's transaction and return their ids, in order."""
        prepared = [self._queue.prepare(job) for job in jobs]
        check_session(session)
        if prepared:
            place = self._place(session)
            self._ready(session)
            place(prepared)
        return [job.id for job in prepared]

    def publish(self, session: Session, topic: str, event: Event) -> str:
        """Publish an event in the session's transaction and return its id.

        Every subscriber of the event's *type* in this service gets a job of its own. With an event bus configured the
        event also goes to ``topic``, for other services. Published again under its id, also when the jobs are done, it
        is not delivered again for as long as the inbox and the outbox remember it.

        Args:
            session: whose commit makes it count.
            topic: the bus's topic; subscribers in this service do not choose by it.
            event: what has happened.

        Raises:
            UndeliverableEvent: nobody would ever receive it; nothing was written.
            PayloadError: the event's data or the topic cannot be stored; nothing was written.
            UnsupportedError: neither the queue nor the outbox lives in the session's database.
            LockTimeout: a transaction that has published the same event stayed open for 30 seconds, or each waits for
                the other; the session has to be rolled back, and may try again.
        """
        check_session(session)
        _check_topic(topic)
        checked = replace(event, data=encode(event.data, max_bytes=self._max_bytes))
        subscribers = self._tasks.subscribers(event.type)
        self._refuse_undeliverable(event.type, subscribers)
        # All that may be refused is checked before the first claim: who catches the error may still commit.
        jobs = [self._queue.prepare(_subscriber_job(task, topic, checked)) for task in subscribers]
        place = self._place(session) if jobs else None
        table = self._table_of(session) if self._has_bus else None
        self._ready(session)
        # In the order of the names, in every process: of two that publish this event one waits, they never deadlock.
        fresh = [job for job in jobs if _claim(session, event, job)]
        if place is not None and fresh:
            place(fresh)
        if table is not None:
            self._write_event(session, table, topic, checked)
        return event.id

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` instead of the relay after commits inside the block, for tests."""
        before, self._wake = self._wake, wake
        try:
            yield
        finally:
            self._wake = before

    def _refuse_undeliverable(self, event_type: str, subscribers: Sequence[Task]) -> None:
        if subscribers and not self.has_queue:
            names = ", ".join(task.name for task in subscribers)
            raise UndeliverableEvent(
                f'event {event_type!r} has subscribers ({names}) and no queue to run them: add "queue" to [plugins] '
                "enabled"
            )
        if not subscribers and not self._has_bus:
            raise UndeliverableEvent(
                f"event {event_type!r} would reach nobody: no module of this service subscribes to it and no event bus "
                f'is configured. Write @subscribe("{event_type}") in the tasks.py of the module that reacts, or add '
                '"events" (Kafka) to [plugins] enabled if another service does'
            )

    def _place(self, session: Session) -> Callable[[Sequence[Job]], None]:
        """Return what stores prepared jobs in the session's transaction: in the queue, or else in the outbox."""
        backend = self._queue.backend
        if isinstance(backend, SharesTransaction) and backend.shares(session):
            return lambda jobs: self._queue.tell_known(jobs, len(backend.enqueue_in(session, jobs)))
        table = self._table_of(session)
        return lambda jobs: self._write_jobs(session, table, jobs)

    def _write_jobs(self, session: Session, table: OutboxTable, jobs: Sequence[Job]) -> None:
        stored = self._write(session, table, [job_row(job, postgres=table.postgres) for job in jobs])
        if stored < len(jobs):  # a job whose id an event has gets a row of another id; the job keeps its own
            taken = {
                row_id for row_id, (kind, _) in table.find(session, [job.id for job in jobs]).items() if kind != JOB
            }
            beside = [(job, row_beside(job.id)) for job in jobs if job.id in taken]
            rows = [job_row(job, postgres=table.postgres, row_id=row_id) for job, row_id in beside]
            stored += self._write(session, table, rows) if rows else 0
        self._queue.tell_known(jobs, stored)

    def _write_event(self, session: Session, table: OutboxTable, topic: str, event: Event) -> None:
        if self._write(session, table, [event_row(event, topic, row_id=event.id)]):
            return
        if table.find(session, [event.id]).get(event.id) != (
            EVENT,
            topic,
        ):  # to another topic, or a job's id: a row of its own
            self._write(session, table, [event_row(event, topic, row_id=derived(f"{event.id}@{topic}"))])

    def _write(self, session: Session, table: OutboxTable, rows: Sequence[dict[str, Any]]) -> int:
        stored = table.insert(session, rows)
        if stored:
            on_commit(session, self._wake)
        return stored

    def _table_of(self, session: Session) -> OutboxTable:
        backend = self._queue.backend.backend
        if self._table is None:
            raise UnsupportedError(
                f"the {backend} queue does not live in this session's database, and there is no outbox to carry what "
                'is to join its transaction: add "database" and "outbox" to [plugins] enabled'
            )
        if not in_database(session, self._table.database):
            raise UnsupportedError(
                f"this session is bound to another database than the app's; the {backend} queue's messages are "
                "written to the app's own: use jf.session(), or queue.enqueue(job) after the commit"
            )
        return self._table


def _subscriber_job(task: Task, topic: str, event: Event) -> Job:
    return Job(
        id=subscriber_job_id(event.id, task.name),
        task=task.name,
        payload={"topic": topic, "event": event.to_dict()},
        queue=task.queue or "default",
        priority=task.priority or 0,
        max_attempts=task.max_attempts,
        request_id=event.request_id,
        tenant_id=event.tenant_id,
        trace=dict(event.trace) or None,
    )


def _claim(session: Session, event: Event, job: Job) -> bool:
    consumer = _PUBLISHED + job.task
    return claim_once(session, event.id, consumer=consumer, tenant_id=None, wait=_LONGEST_WAIT)


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str) or not topic or len(topic) > _LONGEST_TOPIC or not topic.isprintable():
        raise PayloadError(f"a topic is 1 to {_LONGEST_TOPIC} printable characters, got {topic!r:.80}")
