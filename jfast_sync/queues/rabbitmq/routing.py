"""From a stored job to the message that carries it: straight to its queue, through the cascade, or to the dead ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from jfast_sync.job import Job
from jfast_sync.outcome import Bury, Done, Outcome, Release, Retry
from jfast_sync.queues.rabbitmq.ledger import Delivery, Held
from jfast_sync.queues.rabbitmq.message import DEATH_HEADER, ERROR_HEADER, Stored, milliseconds, short
from jfast_sync.queues.rabbitmq.names import WorkQueue, band_of
from jfast_sync.queues.rabbitmq.publisher import Message, new_message_id
from jfast_sync.queues.rabbitmq.topology import Topology

__all__ = ["Routing"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Builds messages; does no I/O."""

    topology: Topology

    def enqueued(self, job: Job, now: datetime) -> Message:
        """Return a new job's message; its delay counts from ``now``."""
        due = now + job.delay if job.delay is not None else job.available_at or now
        stored = Stored(job=replace(job, created_at=now, available_at=due, delay=None))
        return self.due(stored, due, now, new_message_id())

    def due(self, stored: Stored, due: datetime, now: datetime, message_id: str) -> Message:
        """Return the message of a job that may start at ``due``."""
        work = WorkQueue(band_of(stored.job.priority), stored.job.queue)
        names, cascade = self.topology.names, self.topology.cascade
        delay_ms = (due - now) / timedelta(milliseconds=1)
        if delay_ms <= 0:
            return Message("", names.work(work), stored.to_body(), message_id, queue=work.queue)
        if cascade.is_too_long(delay_ms):
            stored = replace(stored, due_ms=milliseconds(due))
        key = cascade.key(cascade.ticks(delay_ms), names.destination(work))
        return Message(names.level(cascade.levels - 1), key, stored.to_body(), message_id, queue=work.queue)

    def outcome(self, held: Held, outcome: Outcome, now: datetime) -> Message | None:
        """Return what replaces a leased message; None where nothing does."""
        match outcome:
            case Retry():
                return self._retry(held, outcome, now)
            case Bury(error, traceback):
                stored = held.stored
                job = replace(stored.job, attempts=held.lease.job.attempts, error=error)
                stored = replace(stored, job=job, traceback=traceback, died_at=now, due_ms=None)
                return Message("", self.topology.names.dead, stored.to_body(), held.copy_id)
            case Release():
                return self.due(replace(held.stored, due_ms=None), now, now, held.copy_id)
            case Done():
                return None

    def _retry(self, held: Held, retry: Retry, now: datetime) -> Message:
        due = retry.until if retry.until is not None else now + timedelta(seconds=max(retry.delay, 0.0))
        stored = held.stored
        attempts = stored.job.attempts if retry.refund else held.lease.job.attempts
        job = replace(stored.job, attempts=attempts, available_at=due)
        stored = replace(stored, job=job, due_ms=None)
        if retry.error is not None:
            stored = replace(stored, job=replace(job, error=retry.error), traceback=retry.traceback)
        if retry.snooze and stored.snoozed_since is None:
            stored = replace(stored, snoozed_since=held.lease.claimed_at)
        return self.due(stored, due, now, held.copy_id)

    def undecodable(self, body: bytes, reason: str, now: datetime) -> Message:
        """Return the dead letter of a body that is no job: the same bytes, and why in a header."""
        headers = {ERROR_HEADER: short(reason), DEATH_HEADER: milliseconds(now)}
        return Message("", self.topology.names.dead, body, new_message_id(), headers=headers)

    def again(self, delivery: Delivery, stored: Stored | None) -> Message:
        """Return a copy of a delivery that was not started, in the queue it came from; counted lapses go with it."""
        body = stored.to_body() if stored is not None else delivery.body
        return Message("", self.topology.names.work(delivery.work), body, new_message_id(), queue=delivery.work.queue)

    def revived(self, body: bytes, stored: Stored | None, now: datetime) -> Message:
        """Return a dead letter's job as if it had never run; a body that is no job goes back as it is."""
        if stored is None:
            default = WorkQueue(1, "default")
            return Message("", self.topology.names.work(default), body, new_message_id(), queue=default.queue)
        job = replace(stored.job, attempts=0, error=None, available_at=now)
        return self.due(Stored(job=job), now, now, new_message_id())
