"""What this process knows of its schedules: how far each has been dealt with, and when to look at it again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from jfast_sync.backoff import backoff
from jfast_sync.schedules.ticks import Due, Recurrence, due

if TYPE_CHECKING:
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["ON_TIME", "Entry", "Timetable"]

#: A tick that is claimed up to this much after its instant is not called missed.
ON_TIME: Final = timedelta(minutes=1)


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

    def dealt_with(self, tick: datetime, following: datetime) -> None:
        """Note that a tick was claimed, here or elsewhere."""
        self.since = self.last = tick
        self.tries, self.error = 0, None
        self.wait_for(following)

    def wait_for(self, tick: datetime) -> None:
        """Look again when this tick is due."""
        self.next_tick = self.look_at = tick

    def again(self, now: datetime, error: str | None, *, base: float) -> None:
        """Look again at the same tick soon; ``error`` None: somebody else is at it."""
        self.tries += 1
        self.error = error
        self.look_at = now + timedelta(seconds=backoff(self.tries, base=base, cap=5.0, jitter=0.2))


class Timetable:
    """Entries ordered by when to look at them; a pass costs what is due, not what there is.

    Args:
        now: the store's present instant.
    """

    def __init__(self, now: datetime) -> None:
        self.entries: list[Entry] = []
        self._heap: list[tuple[datetime, int, Entry]] = []
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
        heapq.heappush(self._heap, (entry.look_at, id(entry), entry))

    def take(self, now: datetime) -> Iterator[Entry]:
        """Take out what is to be looked at by now: what failed before comes last, so that it holds up nobody."""
        if now < self._now:
            self._put_back(now)
        self._now = now
        taken = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heapq.heappop(self._heap)[2])
        return iter(sorted(taken, key=lambda entry: (entry.tries > 0, entry.look_at)))

    @property
    def next_look(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None

    def _put_back(self, now: datetime) -> None:
        """The clock was put back: what waits for a repetition must not wait for the old time to come again."""
        for entry in self.entries:
            if entry.tries:
                entry.look_at = min(entry.look_at, now)
        self._arrange()

    def _arrange(self) -> None:
        self._heap = [(entry.look_at, id(entry), entry) for entry in self.entries]
        heapq.heapify(self._heap)


def _entry(schedule: ScheduleDeclaration, last: datetime | None, now: datetime) -> Entry:
    recurrence = schedule.recurrence()
    if last is None:
        since = now
    elif schedule.catch_up:
        since = last
    else:
        since = max(last, now)
    first = recurrence.next(since)
    return Entry(schedule, recurrence, since, first, first, last)
