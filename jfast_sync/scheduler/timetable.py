"""What this process knows of its schedules: how far each has been dealt with, and when to look at it again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from jfast_sync.backoff import backoff
from jfast_sync.schedules.ticks import Due, Recurrence, due, missed

if TYPE_CHECKING:
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["ON_TIME", "OVERDUE", "Entry", "Timetable"]

#: A tick that is claimed up to this much after its instant is not called missed.
ON_TIME: Final = timedelta(minutes=1)
#: A tick that nobody has claimed for this long is worth a word.
OVERDUE: Final = timedelta(seconds=30)

_MOMENT: Final = timedelta(microseconds=1)
_PUT_BACK: Final = timedelta(seconds=1)  # less is the difference between two clocks' speeds


@dataclass(slots=True, eq=False)
class Entry:
    """One schedule; all instants are the store's, in UTC.

    ``since``: ticks up to here have been dealt with. ``next_tick`` is the one to be claimed, at ``look_at`` or, after
    ``tries``, again. ``last`` is the latest that anybody is known to have claimed, ``error`` why the next is not.
    """

    schedule: ScheduleDeclaration
    recurrence: Recurrence
    since: datetime
    next_tick: datetime
    look_at: datetime
    last: datetime | None = None
    tries: int = 0
    error: str | None = None

    def due(self, now: datetime) -> Due:
        """Say which tick is to be claimed now."""
        return due(self.recurrence, since=self.since, now=now, late=None if self.schedule.catch_up else ON_TIME)

    def passed_over(self, before: datetime, at_most: int) -> int:
        """Count the ticks before this one that nobody has dealt with, up to ``at_most``."""
        return missed(self.recurrence, since=self.since, before=before, at_most=at_most)

    def deadline(self, now: datetime) -> datetime:
        """Say until when to claim what is due now: until its next tick takes its place, and soon in any case.

        What has failed before waits for the others.
        """
        if self.tries:
            return now + OVERDUE
        following = self.recurrence.next(self.next_tick)
        if following <= now:
            following = self.due(now).next
        return min(following, now + (ON_TIME if self.schedule.catch_up else OVERDUE))

    def learn(self, latest: datetime | None) -> None:
        """Note the latest tick that anybody has claimed."""
        if latest is not None:
            self.last = latest
            self.since = max(self.since, latest)

    def dealt_with(self, tick: datetime, following: datetime) -> None:
        """Note that a tick was claimed, here or elsewhere."""
        self.since = tick
        self.last = max(self.last or tick, tick)
        self.wait_for(following)

    def leave_out(self, until: datetime) -> None:
        """Note that ticks up to an instant will not be claimed any more."""
        self.since = max(self.since, until)

    def wait_for(self, tick: datetime) -> None:
        """Look again when this tick is due."""
        self.tries, self.error = 0, None
        self.next_tick = self.look_at = tick

    def again(self, now: datetime, error: str | None, *, base: float) -> None:
        """Look again at the same tick soon; ``error`` None: somebody else is at it."""
        self.tries += 1
        self.error = error
        self.look_at = now + timedelta(seconds=backoff(self.tries, base=base, cap=5.0, jitter=0.2))


class Timetable:
    """Entries ordered by when to look at them, and those that are due by their deadlines.

    A pass costs what is due, not what there is.

    Args:
        now: the store's present instant.
    """

    def __init__(self, now: datetime) -> None:
        self.entries: list[Entry] = []
        self._waiting: list[tuple[datetime, int, Entry]] = []
        self._due: list[tuple[datetime, int, Entry]] = []
        self._now = now

    def unknown(self, schedules: Iterable[ScheduleDeclaration]) -> list[ScheduleDeclaration]:
        """Return those of the schedules that have no entry yet, or another one."""
        known = {entry.schedule.name: entry.schedule for entry in self.entries}
        return [schedule for schedule in schedules if known.get(schedule.name) != schedule]

    def change(self, schedules: Iterable[ScheduleDeclaration], latest: Mapping[str, datetime], now: datetime) -> None:
        """Take these schedules for those there are; who has an entry keeps it.

        Args:
            schedules: all there are.
            latest: the latest claimed tick of each unknown one. One that is not in it is new, and starts at its next
                tick.
            now: the store's present instant.
        """
        known = {entry.schedule.name: entry for entry in self.entries}
        entries = []
        for schedule in schedules:
            entry = known.get(schedule.name)
            if entry is None or entry.schedule != schedule:
                entry = _entry(schedule, latest.get(schedule.name), now)
            entries.append(entry)
        self.entries = entries
        self._arrange()

    def put(self, entry: Entry) -> None:
        """Enter it by its ``look_at``."""
        heapq.heappush(self._waiting, (entry.look_at, id(entry), entry))

    def take(self, now: datetime) -> Entry | None:
        """Take out, of what is to be looked at by now, the entry with the earliest deadline."""
        if now < self._now - _PUT_BACK:
            self._put_back(now)
        self._now = now
        while self._waiting and self._waiting[0][0] <= now:
            entry = heapq.heappop(self._waiting)[2]
            heapq.heappush(self._due, (entry.deadline(now), id(entry), entry))
        return heapq.heappop(self._due)[2] if self._due else None

    @property
    def next_look(self) -> datetime | None:
        if self._due:
            return self._now
        return self._waiting[0][0] if self._waiting else None

    def _put_back(self, now: datetime) -> None:
        """The clock was put back: what waits for a repetition must not wait for the old time to come again."""
        for entry in self.entries:
            if entry.tries:
                entry.look_at = min(entry.look_at, now)
        self._arrange()

    def _arrange(self) -> None:
        self._due.clear()
        self._waiting = [(entry.look_at, id(entry), entry) for entry in self.entries]
        heapq.heapify(self._waiting)


def _entry(schedule: ScheduleDeclaration, last: datetime | None, now: datetime) -> Entry:
    recurrence = schedule.recurrence()
    if last is None:
        since = now
    elif recurrence.next(last - _MOMENT) != last:
        since = max(last, now)  # its times were others then: what the new ones had before now was never promised
    elif schedule.catch_up:
        since = last
    else:
        since = max(last, now - ON_TIME)  # absent for a moment only, it has missed nothing
    first = recurrence.next(since)
    return Entry(schedule, recurrence, since, first, first, last)
