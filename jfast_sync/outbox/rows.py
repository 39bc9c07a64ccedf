"""A message as a row of the outbox: how jobs and events are written into one, and read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from jfast_sync.errors import PayloadError
from jfast_sync.event import Event
from jfast_sync.job import Job

__all__ = [
    "EVENT",
    "JOB",
    "DeadMessage",
    "Failure",
    "Lane",
    "Message",
    "OutboxStats",
    "derived",
    "event_row",
    "in_runs",
    "instant",
    "job_row",
    "lanes_json",
    "micros",
    "row_beside",
    "row_ids",
    "unbroken",
]

JOB: Final = "job"
EVENT: Final = "event"

Lane = tuple[str, str]  # topic and key: what keeps its order


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One row that a relay has leased: what to send, and where to."""

    seq: int
    id: str
    kind: str
    destination: str
    body: str = field(repr=False, default="")
    key: str | None = None
    request_id: str | None = None
    tenant_id: str | None = None
    attempts: int = 0

    @property
    def lane(self) -> Lane | None:
        """What keeps its order: the topic and key; None where there is no order to keep."""
        return None if self.key is None else (self.destination, self.key)

    def job(self) -> Job:
        """Rebuild the job.

        Raises:
            PayloadError: the row cannot be read as one.
        """
        body = self._body()
        payload = body.get("payload") or {}
        if not isinstance(payload, dict):
            raise PayloadError("the outbox row is not a job: its payload is not a JSON object")
        try:
            return Job(
                id=body.get("id") or self.id,
                task=self.destination,
                payload=payload,
                max_attempts=int(body.get("max_attempts") or 3),
                queue=body.get("queue") or "default",
                priority=body.get("priority") or 0,
                request_id=self.request_id,
                tenant_id=self.tenant_id,
                trace=body.get("trace") or None,
            )
        except (TypeError, ValueError, OverflowError) as exc:
            raise PayloadError(f"the outbox row is not a job: {exc}") from None

    def event(self) -> Event:
        """Rebuild the event.

        Raises:
            PayloadError: the row cannot be read as one.
        """
        fields = dict(self._body())
        return Event.from_dict(fields if self.key is None else {**fields, "key": self.key})

    def _body(self) -> Mapping[str, Any]:
        try:
            body = json.loads(self.body)
        except (ValueError, RecursionError) as exc:
            raise PayloadError(f"the outbox row's payload cannot be read ({exc.__class__.__name__})") from None
        if not isinstance(body, dict):
            raise PayloadError("the outbox row's payload is not a JSON object")
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one message could not be sent.

    ``final``: no retry can deliver it as things are configured. ``away``: the server could not be reached.
    """

    message: Message
    error: str
    final: bool = False
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message that was given up, with its last error."""

    message: Message
    error: str | None
    created_at: datetime
    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStats:
    """How many messages are where; never scans. Each count ends at ``cap``, where it means "at least".

    ``failing`` are pending ones that could not be sent at least once. ``oldest_pending_seconds`` is how long the oldest
    has been due, None where nothing waits. ``last_error`` is the latest reason of a failing one, else of a dead one.
    """

    pending: int = 0
    failing: int = 0
    dead: int = 0
    published: int = 0
    oldest_pending_seconds: float | None = None
    last_error: str | None = None
    cap: int = 0


def job_row(job: Job, *, postgres: bool, row_id: str | None = None) -> dict[str, Any]:
    """Return the row of a prepared job; what the sibling's relay reads, and keys it does not know.

    ``row_id``: the row's id where it is not the job's.
    """
    body = {
        "payload": job.payload,
        "max_attempts": job.max_attempts,
        "trace": dict(job.trace or {}),
        "queue": job.queue,
        "priority": job.priority,
    }
    if row_id is not None:
        body["id"] = job.id
    return {
        **_row(row_id or job.id, JOB, job.task, body),
        "request_id": job.request_id,
        "tenant_id": job.tenant_id,
        "due": job.available_at if postgres or job.available_at is None else micros(job.available_at),
        "delay": None if job.delay is None else job.delay.total_seconds(),
    }


def row_beside(job_id: str) -> str:
    """Return the id of a job's row where an event has the job's own."""
    return derived(f"{JOB}/{job_id}")


def row_ids(job_id: str) -> list[str]:
    """Return the ids that the row of a job may have."""
    return [job_id, row_beside(job_id)]


def derived(text: str) -> str:
    """Return the id of a row beside the one that has its message's id."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def event_row(event: Event, topic: str, *, row_id: str) -> dict[str, Any]:
    """Return the row of an event whose data is plain JSON already."""
    return {
        **_row(row_id, EVENT, topic, event.to_dict()),
        "message_key": event.key,
        "request_id": event.request_id,
        "tenant_id": event.tenant_id,
    }


def _row(row_id: str, kind: str, destination: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row_id,
        "kind": kind,
        "destination": destination,
        "payload": json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False),
        "message_key": None,
        "request_id": None,
        "tenant_id": None,
        "due": None,
        "delay": None,
    }


def micros(value: datetime) -> int:
    """Return an instant as SQLite keeps it: microseconds since the epoch, UTC."""
    return round(value.timestamp() * 1_000_000)


def instant(value: datetime | int) -> datetime:
    """Return an instant as a database gives it, aware, UTC."""
    return datetime.fromtimestamp(value / 1_000_000, UTC) if isinstance(value, int) else value.astimezone(UTC)


def in_runs(messages: Sequence[Message]) -> dict[Lane, list[Message]]:
    """Return the messages whose order counts, by topic and key, each run in its order."""
    runs: dict[Lane, list[Message]] = {}
    for message in sorted(messages, key=lambda one: one.seq):
        if message.lane is not None:
            runs.setdefault(message.lane, []).append(message)
    return runs


def unbroken(run: Sequence[Message], heads: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of a run are the oldest pending rows of their key, without a gap."""
    length = 0
    for message, head in zip(run, heads, strict=False):
        if message.seq != head["seq"]:
            break
        length += 1
    return length


def lanes_json(lanes: Mapping[Lane, int]) -> str:
    """Return keys, each with a number, as one parameter."""
    return json.dumps(
        [{"destination": lane[0], "message_key": lane[1], "number": number} for lane, number in sorted(lanes.items())]
    )
