"""A job: an order to run one task once, with everything needed to run it as who enqueued it.

``Job`` is what a caller builds, ``Lease`` what a worker holds while it runs one, ``DeadJob`` what is
left when it failed for good, ``RunningJob`` what a handler sees of itself. The wire form is the JSON
that Redis and RabbitMQ carry, shared with the asynchronous sibling.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from jfast_sync import context
from jfast_sync.errors import PayloadError

__all__ = ["MAX_PRIORITY", "DeadJob", "Job", "Lease", "RunningJob", "check_trace", "new_id"]

MAX_PRIORITY: Final = 9
_QUEUE: Final = re.compile(r"[^,\s]+")  # a list of queues is written with commas between them
_LONGEST_DELAY: Final = timedelta(days=3660)  # ten years; the databases' intervals and dates end somewhere
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_LONGEST_TRACE: Final = 16_384  # characters: a traceparent, a tracestate and a baggage of the W3C's 8,192 bytes
_MAX_TEXT: Final = {"id": 128, "task": 255, "queue": 128, "tenant_id": 255, "request_id": 128}


def new_id() -> str:
    """Return a fresh id: 32 hex characters that sort by the time they were made.

    A version-7 UUID (RFC 9562, section 5.7, with 12 bits of sub-millisecond time, method 3 of section 6.2).
    """
    millisecond, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    low = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    number = (millisecond & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | fraction << 64 | 0x2 << 62 | low
    return uuid.UUID(int=number).hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An order to run ``task`` once with ``payload``.

    Args:
        task: the task's name, a wire contract between whoever enqueues and whoever runs.
        payload: a JSON object. Checked and encoded when enqueued, never in the worker.
        id: 1 to 128 characters; made when not given. A duplicate id is stored once.
        queue: the named queue; workers may be limited to some.
        priority: -9 to 9, higher first.
        attempts: starts so far; a claim counts one.
        max_attempts: starts allowed; None takes the task's, else the configuration's.
        available_at: not before this instant (aware; stored as UTC). None: at once.
        delay: not before this long after the backend's clock at enqueue; instead of ``available_at``.
        created_at: when it was stored, by the backend's clock (UTC).
        request_id, tenant_id, trace: taken from the running request, job or span unless given.
        error: why the latest attempt failed.

    Raises:
        PayloadError: a field is empty, too long or out of bounds.
    """

    task: str
    payload: Any = field(default_factory=dict)
    id: str = field(default_factory=new_id)
    queue: str = "default"
    priority: int = 0
    attempts: int = 0
    max_attempts: int | None = None
    available_at: datetime | None = None
    delay: timedelta | None = None
    created_at: datetime | None = None
    request_id: str | None = field(default_factory=context.current_request_id)
    tenant_id: str | None = field(default_factory=context.current_tenant_id)
    trace: Mapping[str, str] | None = field(default_factory=context.current_trace)
    error: str | None = None

    def __post_init__(self) -> None:
        for name, limit in _MAX_TEXT.items():
            _check_text(name, getattr(self, name), limit)
        if not _QUEUE.fullmatch(self.queue):
            raise PayloadError(f"queue must not hold a comma or a space, got {self.queue!r:.80}")
        _check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        _check_int("attempts", self.attempts, 0, 2**31 - 1)
        if self.max_attempts is not None:
            _check_int("max_attempts", self.max_attempts, 1, 2**31 - 1)
        if self.delay is not None and self.available_at is not None:
            raise PayloadError("a job takes delay or available_at, not both")
        _check_delay(self.delay)
        if self.trace is not None:
            check_trace("trace", self.trace)
        for name in ("available_at", "created_at"):
            _check_aware(name, getattr(self, name))

    def to_wire(self) -> bytes:
        """Return the JSON that Redis and RabbitMQ carry: the sibling's keys in its order, then our own."""
        body: dict[str, Any] = {
            "id": self.id,
            "task": self.task,
            "payload": self.payload,
            "attempts": self.attempts,
            "max_attempts": self.max_attempts,
            "request_id": self.request_id,
            "tenant_id": self.tenant_id,
            "trace": dict(self.trace) if self.trace is not None else None,
            "error": self.error,
            "queue": self.queue,
            "priority": self.priority,
            "available_at": _iso(self.available_at),
            "created_at": _iso(self.created_at),
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_wire(cls, body: bytes | str, **beside: Any) -> Self:
        """Rebuild a job from its wire form; ``id`` and ``task`` are mandatory, unknown keys are ignored.

        Args:
            body: the JSON.
            beside: fields that a queue keeps beside the body; they replace what it says.

        Raises:
            PayloadError: the body is not such a JSON object.
        """
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise PayloadError(f"not a job: the body is not JSON ({exc.__class__.__name__})") from None
        if not isinstance(data, dict) or data.get("id") is None or data.get("task") is None:
            raise PayloadError('not a job: expected a JSON object with "id" and "task"')
        names = ("id", "task", "payload", "attempts", "max_attempts", "queue", "priority", "error")
        fields = {name: data[name] for name in names if data.get(name) is not None}
        if not isinstance(fields.get("payload", {}), dict):
            raise PayloadError('not a job: "payload" must be a JSON object')
        try:
            fields |= {name: data.get(name) for name in ("request_id", "tenant_id", "trace")}
            fields |= {name: _from_iso(data.get(name)) for name in ("available_at", "created_at") if name not in beside}
            return cls(**{**fields, **beside})
        except (TypeError, ValueError, OverflowError) as exc:
            raise PayloadError(f"not a job: {exc}") from None

    @property
    def origin(self) -> context.Origin:
        """The tenant, request and trace to restore around the handler."""
        return context.Origin(tenant_id=self.tenant_id, request_id=self.request_id, trace=self.trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run one job until somebody else claims it.

    ``token`` is new at every claim and alone decides: a settle or extend with a token that is no longer current
    changes nothing. ``job.attempts`` counts this start. ``lapses`` counts earlier starts whose worker vanished;
    ``snoozed_since`` is when the job first snoozed, ``claimed_at`` the backend's clock at the claim (both UTC).
    """

    job: Job
    token: str
    claimed_at: datetime
    lapses: int = 0
    snoozed_since: datetime | None = None

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts or 1

    @property
    def alone(self) -> bool:
        """Whether this is the last start after a lapse, which runs alone in a child process of its own."""
        return self.lapses > 0 and self.job.attempts >= self.max_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """A job that failed for good: it keeps payload, attempts, tenant, error and a bounded traceback."""

    job: Job
    died_at: datetime
    traceback: str | None = None
    raw: bytes | None = None


class RunningJob:
    """What a handler sees of the job it runs: every field of :class:`Job`, and whether it has been told to stop."""

    __slots__ = ("_cancelled", "job")

    def __init__(self, job: Job, cancelled: threading.Event | None = None) -> None:
        self.job = job
        self._cancelled = cancelled or threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name in RunningJob.__slots__:  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.job, name)

    @property
    def cancelled(self) -> bool:
        """Whether the job has been told to stop: timeout, shutdown, cancellation or a lost lease."""
        return self._cancelled.is_set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait up to ``seconds`` to be told to stop; return whether it happened. A sleep that a drain can end."""
        return self._cancelled.wait(seconds)


def _check_text(name: str, value: object, limit: int) -> None:
    if value is None and name in ("tenant_id", "request_id"):
        return
    if not isinstance(value, str) or not value:
        raise PayloadError(f"{name} must be a non-empty string, got {_shown(value)}")
    if len(value) > limit:
        raise PayloadError(f"{name} may have up to {limit} characters, got {len(value)}")
    if not value.isprintable():
        raise PayloadError(f"{name} holds a character that cannot be printed: {_shown(value)}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PayloadError(f"{name} must be a whole number from {low} to {high}, got {_shown(value)}")


def _check_delay(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, timedelta):
        raise PayloadError(f"delay must be a timedelta, got {_shown(value)}")
    if not timedelta(0) <= value <= _LONGEST_DELAY:
        raise PayloadError(f"delay must be from 0 to {_LONGEST_DELAY.days:,} days, got {value}")


def check_trace(name: str, value: object) -> None:
    """Refuse what no backend can store as a job's or an event's trace, or what would not fit into a header.

    Raises:
        PayloadError: the message begins with ``name``.
    """
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise PayloadError(f"{name} must be a mapping of texts (a W3C carrier), got {_shown(value)}")
    texts = [text for pair in value.items() for text in pair]
    if any(_UNSTORABLE.search(text) for text in texts):
        raise PayloadError(f"{name} holds NUL or half of a surrogate pair, which databases cannot store")
    if (length := sum(map(len, texts))) > _LONGEST_TRACE:
        raise PayloadError(f"{name} may have up to {_LONGEST_TRACE:,} characters, got {length:,}")


def _shown(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # a whole number of more digits than Python writes
        return f"a {type(value).__name__} without a text"


def _check_aware(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, datetime):
        raise PayloadError(f"{name} must be a datetime, got {_shown(value)}")
    if value.utcoffset() is None:
        raise PayloadError(f"{name} must carry a time zone, got the naive {value!r}; use datetime.now(UTC)")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise PayloadError(f"{name} is outside of what a datetime can hold in UTC: {value}") from None


def _iso(value: datetime | None) -> str | None:
    return value.astimezone(UTC).isoformat() if value is not None else None


def _from_iso(text: str | None) -> datetime | None:
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    if instant.utcoffset() is None:
        raise ValueError(f"an instant without a time zone: {text:.40}")
    return instant.astimezone(UTC)
