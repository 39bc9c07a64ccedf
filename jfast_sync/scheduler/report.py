"""What ``/ready`` says of the schedules. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from jfast_sync.scheduler.timetable import ON_TIME, OVERDUE, Entry

__all__ = ["from_the_future", "shown", "some", "troubles"]

_SHOWN: Final = 100
_SAID: Final = 5


def troubles(entries: Sequence[Entry], now: datetime | None) -> list[str]:
    """Return what is wrong with the schedules: the first few of them by name.

    Args:
        entries: all there are.
        now: the store's time, None where it is not known yet.
    """
    found = [(entry, trouble) for entry in entries if (trouble := _trouble(entry, now)) is not None]
    said = [f"schedule {entry.schedule.name} {trouble}" for entry, trouble in found[:_SAID]]
    if len(found) > _SAID:
        said.append(f"{len(found) - _SAID} more schedules fail")
    return said


def _trouble(entry: Entry, now: datetime | None) -> str | None:
    if entry.error is not None:
        return f"fails: {entry.error}"
    if now is None:
        return None
    if now - entry.next_tick > OVERDUE:
        return f"is overdue: nobody has claimed the tick of {entry.next_tick.isoformat()}"
    if entry.last is not None and from_the_future(entry.last, now):
        return f"is silent: its latest claim is of {entry.last.isoformat()}, which lies in the future"
    return None


def from_the_future(last: datetime, now: datetime) -> bool:
    """Say whether a claimed tick is still to come: a clock was wrong, or has been put back."""
    return last - now > ON_TIME


def some(names: Sequence[str]) -> str:
    """Write the first few names out."""
    return ", ".join(names[:_SAID]) + (", ..." if len(names) > _SAID else "")


def shown(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return how many schedules there are, and the state of the failing and the next ones."""
    soonest = sorted(entries, key=lambda entry: (entry.error is None, entry.look_at))[:_SHOWN]
    return {"schedules": dict(_states(soonest)), "count": len(entries)}


def _states(entries: Sequence[Entry]) -> Iterator[tuple[str, dict[str, str | None]]]:
    for entry in entries:
        last = entry.last.isoformat() if entry.last is not None else None
        yield entry.schedule.name, {"next": entry.next_tick.isoformat(), "last": last, "error": entry.error}
