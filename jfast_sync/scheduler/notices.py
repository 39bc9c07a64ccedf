"""What the scheduler logs: ticks that come late or are left out, a few by name in each pass and the rest by number."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from jfast_sync.scheduler.report import from_the_future, some
from jfast_sync.scheduler.timetable import OVERDUE, Entry

if TYPE_CHECKING:
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["Notices"]

log = logging.getLogger("jfast_sync.scheduler")

_EACH_PASS: Final = 5
_COUNTED: Final = 100


class Notices:
    """One scheduler's warnings; thousands of schedules may be late at once."""

    def __init__(self) -> None:
        self._said = 0
        self._silent: set[str] = set()

    def unknown_tasks(self, schedules: Sequence[ScheduleDeclaration]) -> None:
        """Name schedules whose tasks are not declared in this process."""
        if schedules:
            log.warning(
                "%d schedules are for tasks this process does not know, and enqueue for whoever does: %s",
                len(schedules),
                some([f"{schedule.name} for task {schedule.task} ({schedule.where})" for schedule in schedules]),
            )

    def silent(self, latest: Mapping[str, datetime], now: datetime) -> None:
        """Name schedules whose latest claim is still to come; once."""
        silent = {name for name, last in latest.items() if from_the_future(last, now)}
        found = sorted(silent - self._silent)
        self._silent |= silent
        if found:
            log.warning(
                "%d schedules are silent until the store's clock has passed their latest claim: %s",
                len(found),
                some(found),
            )

    def tried_again(self, entry: Entry, why: str) -> None:
        """Say why a tick could not be claimed; once for each reason."""
        if why != entry.error:
            self._say(
                "schedule %s: the tick of %s is tried again: %s",
                entry.schedule.name,
                entry.next_tick.isoformat(),
                why,
            )

    def fired(self, entry: Entry, tick: datetime, now: datetime) -> None:
        """Say of a tick that was claimed whether it is late, and how many it has taken the place of."""
        log.debug("schedule %s: tick of %s", entry.schedule.name, tick.isoformat())
        skipped = entry.passed_over(tick, at_most=_COUNTED)
        if now - tick > OVERDUE or skipped:
            self._say(
                "schedule %s: the tick of %s fires %s late; %s before it are skipped",
                entry.schedule.name,
                tick.isoformat(),
                timedelta(seconds=(now - tick) // timedelta(seconds=1)),
                _counted(skipped),
            )

    def left_out(self, entry: Entry, following: datetime) -> bool:
        """Say how many ticks before this one are not made up for; return whether there are any."""
        skipped = entry.passed_over(following, at_most=_COUNTED)
        if skipped:
            self._say(
                "schedule %s: %s ticks before that of %s are skipped: they were missed, and catch_up is False",
                entry.schedule.name,
                _counted(skipped),
                following.isoformat(),
            )
        return skipped > 0

    def end_of_pass(self) -> None:
        """Count what was not said one by one."""
        if self._said > _EACH_PASS:
            log.warning("%d more ticks fail, come late or leave others out", self._said - _EACH_PASS)
        self._said = 0

    def _say(self, message: str, *values: str | timedelta) -> None:
        self._said += 1
        if self._said <= _EACH_PASS:
            log.warning(message, *values)


def _counted(number: int) -> str:
    return f"{number} or more" if number == _COUNTED else str(number)
