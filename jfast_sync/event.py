"""An event: a fact that has happened, for whoever reacts to facts of its type.

The wire form is the JSON that subscribers' jobs, the outbox and Kafka carry, shared with the asynchronous sibling.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from jfast_sync import context
from jfast_sync.errors import PayloadError
from jfast_sync.job import check_trace, new_id

__all__ = ["Event", "subscriber_job_id"]

_LIMITS: Final = {"type": 200, "id": 128, "source": 255, "request_id": 128, "tenant_id": 255, "key": 255}
_OPTIONAL: Final = ("request_id", "tenant_id", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened; its name is in the past tense, like ``receipt.registered``.

    Args:
        type: what happened; subscribers choose by it. Up to 200 characters.
        data: a JSON object that describes it. Checked and encoded when published.
        id: 1 to 128 characters; made when not given. Published again under its id it is delivered once.
        source: who says so, for example the service's name.
        occurred_at: when it happened (aware; stored as UTC); now unless given.
        request_id, tenant_id, trace: taken from the running request, job or span unless given.
        key: events of one key stay in their order; by custom the id of what they are about.

    Raises:
        PayloadError: a field is empty, too long or of another type.
    """

    type: str
    data: Any = field(default_factory=dict)
    id: str = field(default_factory=new_id)
    source: str = ""
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    request_id: str | None = field(default_factory=context.current_request_id)
    tenant_id: str | None = field(default_factory=context.current_tenant_id)
    trace: Mapping[str, str] = field(default_factory=lambda: dict(context.current_trace() or {}))
    key: str | None = None

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            _check_text(name, getattr(self, name), limit)
        _check_instant(self.occurred_at)
        check_trace("an event's trace", self.trace)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON, its keys in the wire's order."""
        return {
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "occurred_at": self.occurred_at.astimezone(UTC).isoformat(),
            "request_id": self.request_id,
            "tenant_id": self.tenant_id,
            "trace": dict(self.trace),
            "key": self.key,
            "data": self.data,
        }

    def to_wire(self) -> bytes:
        """Return the JSON that Kafka carries."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_dict(cls, fields: Any) -> Self:
        """Rebuild an event; ``id`` and ``type`` are mandatory, unknown keys are ignored.

        It is the one that was sent: what is missing stays empty, whatever the present request or job is.

        Raises:
            PayloadError: it is no such object.
        """
        if not isinstance(fields, Mapping) or fields.get("id") is None or fields.get("type") is None:
            raise PayloadError('not an event: expected a JSON object with "id" and "type"')
        try:
            occurred = fields.get("occurred_at")
            return cls(
                type=fields["type"],
                data=fields.get("data") or {},
                id=fields["id"],
                source=fields.get("source") or "",
                occurred_at=datetime.fromisoformat(occurred) if occurred else datetime.now(UTC),
                request_id=fields.get("request_id"),
                tenant_id=fields.get("tenant_id"),
                trace=fields.get("trace") or {},
                key=fields.get("key"),
            )
        except (TypeError, ValueError) as exc:
            raise PayloadError(f"not an event: {exc}") from None

    @classmethod
    def from_wire(cls, body: bytes | str) -> Self:
        """Rebuild an event from its JSON.

        Raises:
            PayloadError: the body is not such JSON.
        """
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise PayloadError(f"not an event: the body is not JSON ({exc.__class__.__name__})") from None
        return cls.from_dict(fields)

    @property
    def origin(self) -> context.Origin:
        """The tenant, request and trace to restore around whatever reacts to it."""
        return context.Origin(tenant_id=self.tenant_id, request_id=self.request_id, trace=dict(self.trace) or None)


def subscriber_job_id(event_id: str, task: str) -> str:
    """Return the id of the job that brings an event to one subscriber: the same at every publication."""
    return hashlib.sha256(f"{event_id}/{task}".encode()).hexdigest()[:32]


def _check_text(name: str, value: object, limit: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if not isinstance(value, str) or (not value and name != "source"):
        raise PayloadError(f"an event's {name} must be a non-empty string, got {value!r:.80}")
    if len(value) > limit:
        raise PayloadError(f"an event's {name} may have up to {limit} characters, got {len(value)}")
    if not value.isprintable():
        raise PayloadError(f"an event's {name} holds a character that cannot be printed: {value!r:.80}")


def _check_instant(value: object) -> None:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise PayloadError(
            f"an event's occurred_at must be a datetime with a time zone, got {value!r:.80}; use datetime.now(UTC)"
        )
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise PayloadError(f"an event's occurred_at is outside of what a datetime can hold in UTC: {value}") from None
