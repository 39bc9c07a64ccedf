"""Ticks: what they are called, and which of them is due: values made from what was claimed and the time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

__all__ = ["Due", "Recurrence", "due", "jitter_of", "missed", "tick_id"]

_NAMESPACE: Final = uuid.UUID("5b0b6c64-41a8-4c38-9d52-3e6c3f0a7d11")  # shared with the asynchronous sibling
_CLOSE: Final = timedelta(milliseconds=1)


class Recurrence(Protocol):
    """What a :class:`~jfast_sync.schedules.Cron` and an :class:`~jfast_sync.schedules.Every` have in common."""

    def next(self, after: datetime) -> datetime: ...
    def next_many(self, after: datetime) -> Iterator[datetime]: ...


@dataclass(frozen=True, slots=True)
class Due:
    """``fires`` is the tick to claim now, if any; ``next`` the one after everything that has been dealt with (UTC)."""

    fires: datetime | None
    next: datetime


def tick_id(name: str, fire_at: datetime) -> str:
    """Return the id of a tick's job: the same in every process, and as the asynchronous sibling's.

    A name-based UUID (RFC 9562, version 5) of ``"<name>@<UTC isoformat>"``, in 32 hex characters.
    """
    return uuid.uuid5(_NAMESPACE, f"{name}@{fire_at.astimezone(UTC).isoformat()}").hex


def jitter_of(job_id: str, jitter: timedelta) -> timedelta:
    """Return how much later than its tick a job starts: from nothing up to ``jitter``, the same in every process."""
    return jitter * (int(uuid.UUID(job_id).hex[-12:], 16) / 2**48)


def due(recurrence: Recurrence, *, since: datetime | None, now: datetime, late: timedelta | None = None) -> Due:
    """Say which tick fires now.

    Of the ticks that were missed only the latest fires, once; the earlier ones never do.

    Args:
        recurrence: when it ticks.
        since: up to where ticks have been dealt with: the last claimed one. None: the schedule is new, and starts at
            its next tick. An instant after ``now`` (the clock was set back) lets nothing fire twice.
        now: the store's clock.
        late: a tick missed by more than this does not fire; None: however late.
    """
    if since is None:
        return Due(None, recurrence.next(now))
    first = recurrence.next(since)
    if first > now:
        return Due(None, first)
    latest, following = _latest(recurrence, first, now)
    on_time = late is None or now - latest <= late
    return Due(latest if on_time else None, following)


def missed(recurrence: Recurrence, *, since: datetime, before: datetime, at_most: int = 1000) -> int:
    """Count the ticks strictly between two instants, up to ``at_most``; for a log line."""
    count = 0
    for tick in recurrence.next_many(since):
        if tick >= before or count >= at_most:
            break
        count += 1
    return count


def _latest(recurrence: Recurrence, tick: datetime, now: datetime) -> tuple[datetime, datetime]:
    """Return the last tick up to now and the one after it, by halving: a year of minutes is not walked through."""
    end = now
    while (following := recurrence.next(tick)) <= now:
        tick = following
        middle = tick + (end - tick) / 2
        if end - middle < _CLOSE:
            continue
        found = recurrence.next(middle)
        if found <= now:
            tick = found
        else:
            end = middle
    return tick, following
