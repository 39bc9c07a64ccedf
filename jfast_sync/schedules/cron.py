"""Cron expressions on a zone's wall clock.

croniter does the calendar work on naive wall-clock times; which wall-clock times become which instants is decided here.
A time that the clock jumps over happens once, moved forward by the jump. One that the clock shows twice happens at its
first occurrence, unless the expression leaves every hour open: then it goes on ticking every real hour.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from jfast_sync.errors import ScheduleError
from jfast_sync.schedules.grammar import Fields, parse
from jfast_sync.schedules.interval import instant
from jfast_sync.schedules.zones import Change, change_between, change_still_felt, offset, zone

__all__ = ["Cron"]

_BEGINNING: Final = datetime(1, 1, 2, tzinfo=UTC)  # before it, a zone west of UTC is before the calendar
_MOMENT: Final = timedelta(microseconds=1)
_WHOLE: Final = {"minutes": 60, "hours": 24, "days": 31, "months": 12, "weekdays": 7}


class Cron:
    """Tick when a zone's wall clock fits a cron expression.

    Args:
        expression: minute, hour, day of month, month, day of week; ``*``, lists, ranges, steps, names of months and
            weekdays, 0 and 7 for Sunday; or @hourly, @daily, @weekly, @monthly, @yearly.
        timezone: the zone's name in the IANA database.

    Raises:
        ScheduleError: the expression or the zone is refused; the message says what to write instead.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self._fields = parse(expression)
        self._zone = zone(timezone)
        self._calendar = _calendar(self._fields)
        self.expression = " ".join(expression.split())
        self.timezone = timezone

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, timezone={self.timezone!r})"

    def __str__(self) -> str:
        return f"{self.expression} ({self.timezone})"

    def next(self, after: datetime) -> datetime:
        """Return the first tick strictly after an aware instant, in UTC.

        Raises:
            ScheduleError: ``after`` is naive, or the tick would lie beyond the year 9999.
        """
        start = instant(after)
        try:
            return self._search(max(start, _BEGINNING))
        except (OverflowError, ValueError):  # croniter's own errors are ValueErrors too
            raise ScheduleError(f"{self} has no tick after {start} that a datetime can hold") from None

    def next_many(self, after: datetime) -> Iterator[datetime]:
        """Return the ticks strictly after an aware instant, one after another, without end."""
        while True:
            after = self.next(after)
            yield after

    def local(self, tick: datetime) -> datetime:
        """Return a tick as the zone's wall clock shows it."""
        return tick.astimezone(self._zone)

    def effect(self, tick: datetime) -> str | None:
        """Say what a change of the clock does to a tick.

        Returns:
            ``moved``: its time of day is left out by the clock. ``first of two`` or ``second of two``: its time of day
            comes twice, and the schedule ticks at both. ``only first of two``: and ticks only now. Else None.
        """
        felt, local = change_still_felt(self._zone, tick), self.local(tick)
        if felt is not None and felt.jump > timedelta(0):
            return None if self._fields.fit(local) else "moved"
        if felt is not None:
            return "second of two"
        if local.utcoffset() == local.replace(fold=1).utcoffset():
            return None
        return "first of two" if self._fields.every_hour else "only first of two"

    def _search(self, start: datetime) -> datetime:
        """Go from one change of the zone's offset to the next until a tick lies before it."""
        ahead, felt, known = offset(self._zone, start), change_still_felt(self._zone, start), start
        while True:
            found = min(self._candidates(start, ahead, felt))
            change = change_between(self._zone, known, found)
            if change is None:
                return found
            start, ahead, felt, known = change.at - _MOMENT, change.after, change, change.at

    def _candidates(self, start: datetime, ahead: timedelta, felt: Change | None) -> Iterator[datetime]:
        """The first instants after ``start`` if the offset stays as it is, with what the last change still does."""
        wall = _wall(start, ahead)
        if felt is not None and felt.jump > timedelta(0):
            moved = self._first_after(_wall(start, felt.before))
            if moved < _wall(felt.at, felt.after):
                yield _instant(moved, felt.before)
        elif felt is not None and not self._fields.every_hour:
            wall = max(wall, _wall(felt.at, felt.before) - _MOMENT)  # these times have been already
        yield _instant(self._first_after(wall), ahead)

    def _first_after(self, wall: datetime) -> datetime:
        # A copy, because croniter keeps the place it has come to, and threads share a schedule.
        calendar = copy.copy(self._calendar)
        found: datetime = calendar.get_next(datetime, start_time=wall)
        return found


def _wall(at: datetime, ahead: timedelta) -> datetime:
    return at.replace(tzinfo=None) + ahead


def _instant(wall: datetime, ahead: timedelta) -> datetime:
    return (wall - ahead).replace(tzinfo=UTC)


@lru_cache(maxsize=4096)
def _calendar(fields: Fields) -> Any:
    """Build croniter's calendar from plain lists, so that none of its own readings of an expression counts."""
    from croniter import croniter  # by the first schedule, not by everybody who declares tasks

    minutes, hours, months = (_listed(name, getattr(fields, name)) for name in ("minutes", "hours", "months"))
    days, weekdays = _listed("days", fields.days), _listed("weekdays", fields.weekdays)
    if not fields.both_days:
        if "*" in (days, weekdays):
            days = weekdays = "*"
        elif not fields.days:
            days = "*"
    expression = f"{minutes} {hours} {days} {months} {weekdays}"
    return croniter(expression, datetime(2000, 1, 1), ret_type=datetime, day_or=not fields.both_days)  # noqa: DTZ001 - a wall clock's


def _listed(name: str, values: Iterable[int]) -> str:
    ordered = sorted(values)
    return "*" if len(ordered) == _WHOLE[name] else ",".join(map(str, ordered))
