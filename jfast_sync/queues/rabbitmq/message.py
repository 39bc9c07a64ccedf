"""One stored message: the job's wire form with what the queue itself has to remember, and back.

Everything that must survive is in the body; headers of a received message are never carried over to the next copy (a
carried ``x-death`` makes the broker drop the second identical delay).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from jfast_sync.errors import PayloadError
from jfast_sync.job import DeadJob, Job, Lease

__all__ = ["DEATH_HEADER", "ERROR_HEADER", "Stored", "dead_job", "deliveries", "milliseconds"]

ERROR_HEADER: Final = "jfast-error"
DEATH_HEADER: Final = "jfast-died-at"
_COUNT_HEADER: Final = "x-delivery-count"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_HEADER: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A job in the broker.

    ``attempts`` of the job counts starts that are over. ``due_ms`` is set only where the delay is longer than the
    cascade's range: milliseconds since 1970 at which the job may start.
    """

    job: Job
    lapses: int = 0
    snoozed_since: datetime | None = None
    due_ms: int | None = None
    traceback: str | None = None
    died_at: datetime | None = None

    def to_body(self) -> bytes:
        """Return the message's body: the job's wire form, then our own keys."""
        own: dict[str, Any] = {
            "lapses": self.lapses or None,
            "snoozed_since": self.snoozed_since.isoformat() if self.snoozed_since is not None else None,
            "due_ms": self.due_ms,
            "traceback": self.traceback,
            "died_at": self.died_at.isoformat() if self.died_at is not None else None,
        }
        own = {key: value for key, value in own.items() if value is not None}
        wire = self.job.to_wire()
        return wire if not own else wire[:-1] + b"," + json.dumps(own, ensure_ascii=False).encode()[1:]

    @classmethod
    def from_body(cls, body: bytes) -> Self:
        """Rebuild what :meth:`to_body` wrote.

        Raises:
            PayloadError: the body is not such a message.
        """
        job = Job.from_wire(body)
        data = json.loads(body)
        try:
            return cls(
                job=job if job.max_attempts is not None else replace(job, max_attempts=3),
                lapses=int(data.get("lapses") or 0),
                snoozed_since=_instant(data.get("snoozed_since")),
                due_ms=int(data["due_ms"]) if data.get("due_ms") is not None else None,
                traceback=data.get("traceback"),
                died_at=_instant(data.get("died_at")),
            )
        except (TypeError, ValueError, OverflowError) as exc:
            raise PayloadError(f"not a job: {exc}") from None

    def due(self, now: datetime) -> datetime:
        """Return when it may start: ``now``, unless its delay is longer than the cascade's range and not over."""
        if self.due_ms is None:
            return now
        return max(datetime.fromtimestamp(self.due_ms / 1000, UTC), now)

    def lapsed(self, times: int) -> Self:
        """Return it after so many starts whose worker vanished; below the last attempt, which is made alone."""
        if not times:
            return self
        last = (self.job.max_attempts or 1) - 1
        attempts = max(min(self.job.attempts + times, last), 0)
        return replace(self, job=replace(self.job, attempts=attempts), lapses=self.lapses + times)

    def lease(self, token: str, now: datetime) -> Lease:
        """Return the right to run it; the start is counted."""
        job = replace(self.job, attempts=self.job.attempts + 1)
        return Lease(job=job, token=token, claimed_at=now, lapses=self.lapses, snoozed_since=self.snoozed_since)


def deliveries(headers: Mapping[str, Any] | None) -> int:
    """Return how often a quorum queue had handed a message out before this delivery."""
    count = (headers or {}).get(_COUNT_HEADER, 0)
    return int(count) if isinstance(count, int) else 0


def milliseconds(instant: datetime) -> int:
    """Return an aware instant in whole milliseconds since 1970."""
    return int((instant - _EPOCH).total_seconds() * 1000)


def dead_job(body: bytes, headers: Mapping[str, Any] | None, message_id: str) -> DeadJob:
    """Return the dead letter that a message in the dead queue is; a body that is no job keeps its bytes."""
    headers = headers or {}
    try:
        stored = Stored.from_body(body)
    except PayloadError as exc:
        error = str(headers.get(ERROR_HEADER) or exc)
        died = _EPOCH.fromtimestamp(int(headers.get(DEATH_HEADER) or 0) / 1000, UTC)
        return DeadJob(job=Job(id=message_id, task="(undecodable)", error=error), died_at=died, raw=body)
    return DeadJob(job=stored.job, died_at=stored.died_at or _EPOCH, traceback=stored.traceback)


def short(text: str) -> str:
    """Return a text that fits into a header."""
    return text[:_LONGEST_HEADER]


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    if instant.utcoffset() is None:
        raise ValueError(f"an instant without a time zone: {text:.40}")
    return instant.astimezone(UTC)
