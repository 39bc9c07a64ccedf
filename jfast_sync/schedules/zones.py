"""Time zones by name, and the instants at which a zone's clock is put forward or back."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from jfast_sync.errors import ScheduleError

__all__ = ["Change", "change_between", "change_still_felt", "offset", "zone"]

_NAME: Final = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}", re.ASCII)
_FOREIGN: Final = ("posix/", "right/")  # copies of all zones; the second counts leap seconds
_LOCAL: Final = {"localtime", "posixrules", "Factory"}  # files in the zones' folder, another on every machine
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?[+-][0-9]{1,2}(?::?[0-9]{2})?", re.IGNORECASE | re.ASCII)
_STEP: Final = timedelta(days=2)  # no zone has ever changed its offset twice within two days
# Near the calendar's ends some zone's wall clock is beyond them, and no zone has ever changed its offset there.
_FIRST: Final = datetime(1, 1, 3, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 29, tzinfo=UTC)
_LONGEST_JUMP: Final = timedelta(days=1)  # a calendar day left out or repeated, at the date line


@dataclass(frozen=True, slots=True)
class Change:
    """At the instant ``at`` (UTC) a zone's offset from UTC goes from ``before`` to ``after``."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def jump(self) -> timedelta:
        """How far the clock is put forward; negative where it is put back."""
        return self.after - self.before


def zone(name: object) -> tzinfo:
    """Return the time zone of that name from the system's data, or from the tzdata package.

    Raises:
        ScheduleError: there is none; never UTC in its place.
    """
    if not isinstance(name, str) or not name.strip():
        raise ScheduleError(f'a time zone is a name like "Europe/Madrid" or "UTC", got {name!r:.80}')
    if name == "UTC":
        return UTC
    if _NAME.fullmatch(name) and not name.startswith(_FOREIGN) and name not in _LOCAL:
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            pass  # also a folder of zones, or a file in that place which is none
    raise ScheduleError(f"there is no time zone {name!r:.80}; {_fix(name)}")


def _fix(name: str) -> str:
    if name in _LOCAL:
        return 'it would be another one on every machine; write the name of the place, like "Europe/Madrid"'
    if _OFFSET.fullmatch(name):
        return (
            'an offset knows no summer time; write the name of the place, like "Europe/Madrid" - or, for two hours '
            'ahead of UTC all year, "Etc/GMT-2" (with this sign)'
        )
    known = zoneinfo.available_timezones()
    if not known:
        return (
            "this machine has no time zone data at all: install the system's tzdata package or run "
            '"pip install tzdata", and see that PYTHONTZPATH is not set to a wrong place'
        )
    by_folded = {other.casefold(): other for other in known}
    close = difflib.get_close_matches(name[:80].casefold(), by_folded, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(by_folded[found] for found in close)}?"
    return 'names are those of the IANA database, like "Europe/Madrid"; if it is a new one, "pip install -U tzdata"'


def offset(zone: tzinfo, at: datetime) -> timedelta:
    """Return how far the zone's wall clock is ahead of UTC at an aware instant."""
    found = at.astimezone(zone).utcoffset()
    assert found is not None
    return found


def change_between(zone: tzinfo, after: datetime, until: datetime) -> Change | None:
    """Return the first change strictly after one instant and not later than another (both UTC)."""
    for year in range(after.year, until.year + 1):
        for change in _changes(zone, year):
            if change.at > after:
                return change if change.at <= until else None
    return None


def change_still_felt(zone: tzinfo, at: datetime) -> Change | None:
    """Return the change whose jump is not over yet: moved times are still to come, or the clock repeats itself."""
    change = change_between(zone, max(at, _FIRST) - _LONGEST_JUMP, at)
    return change if change is not None and at < change.at + abs(change.jump) else None


@lru_cache(maxsize=1024)
def _changes(zone: tzinfo, year: int) -> tuple[Change, ...]:
    return tuple(_search(zone, year)) if zone is not UTC else ()


def _search(zone: tzinfo, year: int) -> Iterator[Change]:
    at = max(datetime(year, 1, 1, tzinfo=UTC), _FIRST)
    end = datetime(year + 1, 1, 1, tzinfo=UTC) if year < _LAST.year else _LAST
    # The last instant of the year before: a change at midnight of New Year's Day belongs to this year.
    at, before = at - timedelta(seconds=1), offset(zone, at - timedelta(seconds=1))
    while at < end - timedelta(seconds=1):
        probe = min(at + _STEP, end - timedelta(seconds=1))
        after = offset(zone, probe)
        if after != before:
            yield Change(_bisect(zone, at, probe, before), before, after)
        at, before = probe, after


def _bisect(zone: tzinfo, low: datetime, high: datetime, before: timedelta) -> datetime:
    while (seconds := (high - low) // timedelta(seconds=1)) > 1:
        middle = low + timedelta(seconds=seconds // 2)
        if offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high
