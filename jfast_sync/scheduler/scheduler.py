"""The loop: due ticks are claimed, and their jobs enqueued inside the claim."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.health import Health
from jfast_sync.loop import Deadline, Loop
from jfast_sync.ports import Claimed, Queue, SharesTransaction, TickStore
from jfast_sync.redact import error_text
from jfast_sync.scheduler.tick_job import tick_job
from jfast_sync.scheduler.timetable import ON_TIME, Entry, Timetable
from jfast_sync.schedules.ticks import missed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.job import Job
    from jfast_sync.tasks.registry import Registry
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["Scheduler"]

log = logging.getLogger("jfast_sync.scheduler")

_LONGEST_SLEEP: Final = 30.0  # seconds; a clock that was changed is noticed after this long
_PRUNE_EVERY: Final = 3600.0
_SHOWN: Final = 100
_SAID: Final = 5
_COUNTED: Final = 100
_ASKED_AT_ONCE: Final = 1000


class Scheduler:
    """Claims the ticks of all declared schedules and enqueues their jobs, in one daemon thread.

    Any number of processes may run one. Every schedule stands for itself: one that cannot be claimed or enqueued is
    tried again and again, with growing pauses, while the others go on.

    Args:
        store: where ticks are claimed; its clock decides what is due.
        queue: where the jobs go. One that shares the store's database takes the job in the claim's transaction.
        tasks: the declared tasks and schedules.
        prepare: fills what a job leaves open.
        retention: how long claimed ticks are kept.
        setup: called before the first pass, until it succeeds.
        on_death: called with what killed the thread.
    """

    def __init__(
        self,
        store: TickStore,
        queue: Queue,
        tasks: Registry,
        *,
        prepare: Callable[[Job], Job],
        retention: timedelta = timedelta(days=7),
        setup: Callable[[], None] = lambda: None,
        on_death: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._store = store
        self._queue = queue
        self._tasks = tasks
        self._prepare = prepare
        self._retention = retention
        self._setup = setup
        self._timetable: Timetable | None = None
        self._revision = -1
        self._prune_at = 0.0
        self._pid = os.getpid()
        self._stopped = False
        self._loop = Loop("jfast-scheduler", self._step, on_death)

    # --- start and stop --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, in the process that serves or works; once."""
        self._loop.start()

    def wake(self) -> None:
        """Look at once whether there are other schedules now; from any thread."""
        self._loop.wake()

    def stop(self) -> None:
        """Ask it to end after the tick it is at; does not wait."""
        self._stopped = True
        self._loop.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end, up to ``timeout`` seconds; return whether it has ended."""
        return self._pid != os.getpid() or self._loop.join(Deadline(timeout))

    def close(self, timeout: float = 2.0) -> None:
        """Stop, wait up to ``timeout`` seconds, and let go of the store's connections."""
        self.stop()
        self.join(timeout)
        if self.of_this_process:
            self._store.close()

    @property
    def of_this_process(self) -> bool:
        """Whether it was made here, and not in the process this one was forked from."""
        return self._pid == os.getpid()

    # --- a pass ------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        if self._timetable is None:
            self._setup()
        now, asked = self._store.now(), time.monotonic()
        timetable = self._current(now)
        for entry in timetable.take(now):
            if not self._loop.stopping:
                self._look(entry, now)
            timetable.put(entry)
        self._prune()
        if timetable.next_look is None:
            return _LONGEST_SLEEP
        wait = (timetable.next_look - now).total_seconds() - (time.monotonic() - asked)
        return min(max(wait, 0.0), _LONGEST_SLEEP)

    def _current(self, now: datetime) -> Timetable:
        """Return the timetable of what is declared now: an app may declare schedules at any time."""
        revision = self._tasks.revision
        if self._timetable is not None and revision == self._revision:
            return self._timetable
        timetable = self._timetable or Timetable(now)
        schedules = self._tasks.schedules()
        new = timetable.unknown(schedules)
        timetable.change(schedules, self._latest([schedule.name for schedule in new]), now)
        self._timetable, self._revision = timetable, revision
        self._say_new(new, len(schedules))
        return timetable

    def _latest(self, names: Sequence[str]) -> dict[str, datetime]:
        latest: dict[str, datetime] = {}
        for start in range(0, len(names), _ASKED_AT_ONCE):
            latest |= self._store.latest(names[start : start + _ASKED_AT_ONCE])
        return latest

    def _say_new(self, new: Sequence[ScheduleDeclaration], count: int) -> None:
        for schedule in new:
            if self._tasks.find(schedule.task) is None:
                log.warning(
                    "schedule %s (%s) is for task %s, which this process does not know: its jobs are enqueued for "
                    "whoever does",
                    schedule.name,
                    schedule.where,
                    schedule.task,
                )
        log.info("scheduler %s: %d schedules, ticks in %s", self.name, count, self._store.store)

    def _look(self, entry: Entry, now: datetime) -> None:
        try:
            found = entry.due(now)
            if found.fires is None:
                entry.wait_for(found.next)
                return
            entry.next_tick = found.fires
            outcome = self._claim(entry.schedule, found.fires)
        except Exception as exc:
            text = error_text(exc)
            if text != entry.error:
                name, tick = entry.schedule.name, entry.next_tick.isoformat()
                log.warning("schedule %s: the tick of %s is tried again: %s", name, tick, text)
            entry.again(now, text, base=0.5)
            return
        if outcome is Claimed.BUSY:
            entry.again(now, entry.error, base=0.2)
            return
        if outcome is Claimed.WON:
            self._say(entry, found.fires, now)
        entry.dealt_with(found.fires, found.next)

    def _claim(self, schedule: ScheduleDeclaration, tick: datetime) -> Claimed:
        with self._store.claiming(schedule.name, tick, by=self.name) as claim:
            if claim.outcome is Claimed.WON:
                self._enqueue(schedule, tick, claim.session)
        return claim.outcome

    def _enqueue(self, schedule: ScheduleDeclaration, tick: datetime, session: Session | None) -> None:
        job = self._prepare(tick_job(schedule, tick, self._tasks))
        queue = self._queue
        if session is not None and isinstance(queue, SharesTransaction) and queue.shares(session):
            queue.enqueue_in(session, [job])
        else:
            # The claim is committed after this. A process that dies in between leaves a tick that is claimed again:
            # the same job id, which the queue stores once.
            queue.enqueue([job])

    def _say(self, entry: Entry, tick: datetime, now: datetime) -> None:
        name = entry.schedule.name
        log.debug("schedule %s: tick of %s", name, tick.isoformat())
        if now - tick <= ON_TIME:
            return
        skipped = missed(entry.recurrence, since=entry.since, before=tick, at_most=_COUNTED)
        more = " or more" if skipped == _COUNTED else ""
        log.warning(
            "schedule %s: the tick of %s fires %s late; %d%s before it are skipped",
            name,
            tick.isoformat(),
            timedelta(seconds=(now - tick) // timedelta(seconds=1)),
            skipped,
            more,
        )

    def _prune(self) -> None:
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + _PRUNE_EVERY
        try:
            self._store.prune(self._retention)
        except Exception as exc:
            log.warning("old ticks could not be pruned, in an hour again: %s", error_text(exc))

    # --- readiness ---------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Say how it is: degraded where it or a schedule fails, never unavailable, because the web still serves."""
        meta: dict[str, Any] = {"store": self._store.store, "scheduler": self.name}
        if not self.of_this_process:
            return Health(status="degraded", detail="the scheduler was started before a fork and does not run here")
        entries = list(self._timetable.entries) if self._timetable is not None else []
        failing = [entry for entry in entries if entry.error is not None]
        troubles = [f"schedule {entry.schedule.name} fails: {entry.error}" for entry in failing[:_SAID]]
        if len(failing) > _SAID:
            troubles.append(f"{len(failing) - _SAID} more schedules fail")
        if self._loop.last_error is not None:
            troubles.insert(0, f"the scheduler fails: {self._loop.last_error}")
        if not self._loop.alive:
            troubles.insert(0, "the scheduler has stopped" if self._stopped else "the scheduler does not run")
        soonest = sorted(entries, key=lambda entry: (entry.error is None, entry.look_at))[:_SHOWN]
        meta["schedules"] = {entry.schedule.name: _shown(entry) for entry in soonest}
        meta["count"] = len(entries)
        return Health(status="degraded" if troubles else "ok", detail="; ".join(troubles), meta=meta)


def _shown(entry: Entry) -> dict[str, str | None]:
    return {
        "next": entry.next_tick.isoformat(),
        "last": entry.last.isoformat() if entry.last is not None else None,
        "error": entry.error,
    }
