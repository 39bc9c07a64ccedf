"""Intervals: ticks at every multiple of a length of time since the Unix epoch, the same in every process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from jfast_sync.errors import ScheduleError

__all__ = ["Every", "instant"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(days=3660)

_UNITS: Final = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": _SHORTEST}


class Every:
    """Tick at every multiple of ``length`` since 1970-01-01T00:00Z, a Thursday.

    A day ticks at 00:00 UTC, a week on Thursdays at 00:00 UTC; a length that does not divide a day drifts through it.

    Args:
        length: from one second to 3,660 days.

    Raises:
        ScheduleError: shorter, longer, or not a timedelta.
    """

    def __init__(self, length: timedelta) -> None:
        if not isinstance(length, timedelta):
            raise ScheduleError(f"an interval is a timedelta like timedelta(minutes=5), got {length!r:.80}")
        if length < _SHORTEST:
            raise ScheduleError(
                f"an interval lasts one second or longer, got {length}; shorter ones are a loop inside a task"
            )
        if length > _LONGEST:
            raise ScheduleError(f"an interval lasts up to {_LONGEST.days:,} days, got {length.days:,} days")
        self.length = length

    def __repr__(self) -> str:
        return f"Every({self.length!r})"

    def __str__(self) -> str:
        return f"every {_spoken(self.length)}"

    def next(self, after: datetime) -> datetime:
        """Return the first tick strictly after an aware instant, in UTC.

        Raises:
            ScheduleError: ``after`` is naive, or the tick would lie beyond the year 9999.
        """
        start = instant(after)
        try:
            return _EPOCH + ((start - _EPOCH) // self.length + 1) * self.length
        except OverflowError:
            raise ScheduleError(f"{self} has no tick after {start} that a datetime can hold") from None

    def next_many(self, after: datetime) -> Iterator[datetime]:
        """Return the ticks strictly after an aware instant, one after another, without end."""
        while True:
            after = self.next(after)
            yield after


def _spoken(length: timedelta) -> str:
    """Write a length as ``90s``, ``5m``, ``1h30m`` or ``7d``."""
    rest, parts = length, ""
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        parts += f"{count}{unit}" if count else ""
    return parts if not rest else f"{length.total_seconds():g}s"


def instant(value: datetime) -> datetime:
    """Return an aware datetime as UTC; whatever offset it carries, the schedule's own zone decides.

    Raises:
        ScheduleError: it is naive or no datetime.
    """
    if not isinstance(value, datetime):
        raise ScheduleError(f"a tick is asked for after an aware datetime, got {value!r:.80}")
    if value.utcoffset() is None:
        raise ScheduleError(
            f"a tick is asked for after an aware datetime, got the naive {value}; use datetime.now(UTC)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ScheduleError(f"{value} is outside of what a datetime can hold in UTC") from None
