"""The front door for cron expressions: what is let in, and what is said of the rest.

A whitelist: five fields of numbers, names, lists, ranges and steps, and five names with an ``@``. Everything that other
programs read differently from each other (backward ranges, ``5/15``, Quartz's letters) is refused with what to write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NoReturn

from jfast_sync.errors import ScheduleError
from jfast_sync.schedules.refusals import not_understood, wrong_count

__all__ = ["Fields", "parse"]

_LONGEST: Final = 500  # characters; every useful expression is far shorter, and nothing long is read at all
_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_INSTEAD: Final = {
    "@midnight": "write @daily",
    "@annually": "write @yearly",
    "@reboot": "code that runs at every start belongs where the app is built",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM: Final = re.compile(r"(?:(\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?", re.ASCII)
_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(\S*)", re.IGNORECASE)
_DAYS: Final = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: Mapping[str, int]

    @property
    def top(self) -> int:
        """The highest value that is not another one's second name: 7 is Sunday, as 0 is."""
        return 6 if self.name == "day of week" else self.high


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)


@dataclass(frozen=True, slots=True)
class Fields:
    """The values at which an expression ticks; ``both_days``: day of month AND day of week must fit, else either.

    Weekdays count from Sunday, 0, to Saturday, 6.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both_days: bool

    @property
    def every_hour(self) -> bool:
        return len(self.hours) == 24

    def fit(self, wall: datetime) -> bool:
        """Say whether a wall-clock time (its zone is ignored) is one of these, to the minute."""
        day, weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        if not (day and weekday if self.both_days else day or weekday):
            return False
        return wall.month in self.months and wall.hour in self.hours and wall.minute in self.minutes


def parse(expression: str) -> Fields:
    """Read a cron expression.

    A field that starts with ``*`` does not restrict. Where day of month and day of week both restrict, either is
    enough (crontab(5)).

    Raises:
        ScheduleError: it is not of this grammar, or never happens; the message says what to write instead.
    """
    if not isinstance(expression, str):
        raise ScheduleError(f'a cron expression is a text like "0 3 * * *", got {expression!r:.80}')
    if len(expression) > _LONGEST:
        raise ScheduleError(
            f"a cron expression may have up to {_LONGEST} characters, got {len(expression):,}: it begins "
            f"{expression[:20]!r}; declare several schedules instead"
        )
    parts = _split(expression)
    sets = [_values(part, field, expression) for part, field in zip(parts, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = sets
    both_days = parts[2].startswith("*") or parts[4].startswith("*")
    days = _possible(days, months, needed=both_days, expression=expression)
    return Fields(minutes, hours, days, months, weekdays, both_days)


def _split(expression: str) -> list[str]:
    if not expression.isascii() or not expression.replace("\t", " ").isprintable():
        _refuse(expression, "it holds a character that belongs to no cron expression; write plain digits on one line")
    parts = expression.split()
    if parts and (zone := _ZONE.fullmatch(parts[0])):
        _refuse(expression, f"the zone stands beside the expression; write timezone={zone[1].strip(chr(34))[:40]!r}")
    if parts and parts[0].startswith("@"):
        return _alias(" ".join(parts), expression).split()
    if len(parts) != len(_FIELDS):
        _refuse(expression, wrong_count(len(parts)))
    return parts


def _alias(text: str, expression: str) -> str:
    found = _ALIASES.get(text.lower())
    if found is None:
        instead = _INSTEAD.get(text.lower(), f"write one of {' '.join(_ALIASES)}, or five fields")
        _refuse(expression, f"{text[:40]} is not known here; {instead}")
    return found


def _values(text: str, field: _Field, expression: str) -> frozenset[int]:
    values: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item.lower())
        if match is None:
            _refuse(
                expression,
                f"{field.name} {item[:40]!r}: {not_understood(item.lower(), field.name, field.low, field.high)}",
            )
        values.update(_item(item, match, field, expression))
    return _shared(frozenset(value % 7 for value in values) if field.top != field.high else frozenset(values))


@lru_cache(maxsize=1024)
def _shared(values: frozenset[int]) -> frozenset[int]:
    """Return the first set that was equal: thousands of schedules leave the same fields open."""
    return values


def _item(item: str, match: re.Match[str], field: _Field, expression: str) -> range:
    star, first, last, step_text = match.groups()
    where = f"{field.name} {item!r}"
    low = field.low if star else _number(first, field, where, expression)
    high = field.top if star else _number(last, field, where, expression) if last else low
    if high < low:
        _refuse(expression, f"{where} runs backward; write {_forward(low, high, int(step_text or 1), field)}")
    if step_text is None:
        return range(low, high + 1)
    step = int(step_text)
    if not star and last is None:
        _refuse(expression, f"{where}: a step needs a range; write {_stepped(low, step or 1, field)}")
    if step == 0:
        _refuse(expression, f"{where}: a step counts from 1; write {item.partition('/')[0]}")
    if step > max(high - low, 1):
        _refuse(expression, f"{where}: the step is longer than the range, so only {low} is left; write {low}")
    return range(low, high + 1, step)


def _number(text: str, field: _Field, where: str, expression: str) -> int:
    if text in field.names:
        return field.names[text]
    if not text.isdigit():
        known = f" or a name like {next(iter(field.names))}" if field.names else ""
        _refuse(expression, f"{where}: {text!r} is not a number{known}")
    number = int(text)
    if not field.low <= number <= field.high:
        _refuse(expression, f"{where}: {number} is out of range; write {field.low} to {field.high}")
    return number


def _stepped(low: int, step: int, field: _Field) -> str:
    """Write "from ``low`` on, each ``step``-th" as a range, or as the one value that is left."""
    low = low if low <= field.top else field.low
    if step > max(field.top - low, 1) or low == field.top:
        return str(low)
    return f"{low}-{field.top}/{step}"


def _forward(low: int, high: int, step: int, field: _Field) -> str:
    if low > field.top:  # from Sunday on, as 7: that is from 0 on
        kept = min(step, max(high, 1))
        return _range(0, high) if kept <= 1 else f"0-{high}/{kept}" if kept < high else "0"
    if field.top != field.high and high == 0 and step <= 1:
        return f"{low}-7 (7 is Sunday as well)"
    if step <= 1:
        return f"{_range(low, field.top)},{_range(field.low, high)}"
    span = field.top - field.low + 1
    around = [field.low + (value - field.low) % span for value in range(low, high + span + 1, step)]
    return ",".join(map(str, around))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _possible(days: frozenset[int], months: frozenset[int], *, needed: bool, expression: str) -> frozenset[int]:
    """Leave out the days that none of the months has.

    Nothing has to be searched for: within the calendar's cycle of 400 years every date falls on every weekday.
    """
    longest = max(_DAYS.get(month, 31) for month in months)
    possible = _shared(frozenset(day for day in days if day <= longest))
    if not possible and needed:
        shown = ", ".join(_MONTHS[month - 1] for month in sorted(months))
        _refuse(
            expression,
            f"it would never happen: {shown} has no day {min(days)}; write a day up to {longest}, or other months",
        )
    return possible


def _refuse(expression: str, why: str) -> NoReturn:
    raise ScheduleError(f"cron expression {expression[:80]!r}: {why}")
