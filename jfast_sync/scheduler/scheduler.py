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
from jfast_sync.ports import Claimed, ClaimLostError, Queue, SharesTransaction, TickClaim, TickStore
from jfast_sync.redact import error_text
from jfast_sync.scheduler.notices import Notices
from jfast_sync.scheduler.report import shown, troubles
from jfast_sync.scheduler.store_time import StoreTime
from jfast_sync.scheduler.tick_job import tick_job
from jfast_sync.scheduler.timetable import ON_TIME, OVERDUE, Entry, Timetable
from jfast_sync.schedules.ticks import Due

if TYPE_CHECKING:
    from jfast_sync.job import Job
    from jfast_sync.tasks.registry import Registry
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["Scheduler"]

log = logging.getLogger("jfast_sync.scheduler")

_LONGEST_SLEEP: Final = 30.0  # seconds; a clock that was changed is noticed after this long
_LONGEST_PASS: Final = timedelta(seconds=1)  # then the store's clock is read again
_KEEP_HOUSE_EVERY: Final = 600.0
_ASKED_AT_ONCE: Final = 1000
_HELD: Final = "somebody else holds its claim and does not end; it goes on when that process does, or is killed"


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
        self._time = StoreTime(store)
        self._notices = Notices()
        self._timetable: Timetable | None = None
        self._revision = -1
        self._keep_house_at = 0.0
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
        now = self._time.read()
        timetable, end = self._current(now), now + _LONGEST_PASS
        while not self._loop.stopping and now < end and (entry := timetable.take(now)) is not None:
            self._look(entry)
            timetable.put(entry)
            now = self._time.now()
        self._notices.end_of_pass()
        self._keep_house(timetable)
        if timetable.next_look is None:
            return _LONGEST_SLEEP
        wait = (timetable.next_look - self._time.now()).total_seconds()
        return min(max(wait, 0.0), _LONGEST_SLEEP)

    def _current(self, now: datetime) -> Timetable:
        """Return the timetable of what is declared now: an app may declare schedules at any time."""
        revision = self._tasks.revision
        if self._timetable is not None and revision == self._revision:
            return self._timetable
        timetable = self._timetable or Timetable(now)
        schedules = self._tasks.schedules()
        new = timetable.unknown(schedules)
        latest = self._latest([schedule.name for schedule in new])
        timetable.change(schedules, latest, now)
        self._timetable, self._revision = timetable, revision
        self._notices.unknown_tasks([schedule for schedule in new if self._tasks.find(schedule.task) is None])
        self._notices.silent(latest, now)
        log.info("scheduler %s: %d schedules, ticks in %s", self.name, len(schedules), self._store.store)
        return timetable

    def _latest(self, names: Sequence[str]) -> dict[str, datetime]:
        latest: dict[str, datetime] = {}
        for start in range(0, len(names), _ASKED_AT_ONCE):
            latest |= self._store.latest(names[start : start + _ASKED_AT_ONCE])
        return latest

    def _look(self, entry: Entry) -> None:
        now = self._time.now()
        try:
            found = self._due(entry, now)
            if found.fires is None:
                if self._notices.left_out(entry, found.next):
                    entry.leave_out(now)
                entry.wait_for(found.next)
                return
            entry.next_tick = found.fires
            outcome = self._claim(entry.schedule, found.fires)
        except _TooLateError:
            entry.look_at = now  # and the next look leaves it out
        except Exception as exc:
            self._again(entry, error_text(exc), base=0.5)
        else:
            if outcome is Claimed.BUSY:
                self._again(entry, _HELD if now - found.fires > OVERDUE else entry.error, base=0.2)
                return
            if outcome is Claimed.WON:
                self._notices.fired(entry, found.fires, self._time.now())
            entry.dealt_with(found.fires, found.next)

    def _due(self, entry: Entry, now: datetime) -> Due:
        """Say which tick is due; where one would be passed over, ask first whether somebody else has claimed it."""
        found = entry.due(now)
        if entry.next_tick <= now and (found.fires or found.next) > entry.next_tick:
            name = entry.schedule.name
            entry.learn(self._store.latest([name]).get(name))
            found = entry.due(now)
        return found

    def _claim(self, schedule: ScheduleDeclaration, tick: datetime) -> Claimed:
        try:
            with self._store.claiming(schedule.name, tick, by=self.name) as claim:
                if claim.outcome is Claimed.WON:
                    self._enqueue(schedule, tick, claim)
            return claim.outcome
        except ClaimLostError:
            return Claimed.LOST

    def _enqueue(self, schedule: ScheduleDeclaration, tick: datetime, claim: TickClaim) -> None:
        job = self._prepare(tick_job(schedule, tick, self._tasks))
        queue, session = self._queue, claim.session
        if session is not None and isinstance(queue, SharesTransaction) and queue.shares(session):
            queue.enqueue_in(session, [job])
            self._check_age(schedule, tick)
        else:
            # A process that dies between the two leaves a tick that is claimed again, with the same job id, or (where
            # the store may not hold a claim across the network) one that is claimed and has no job.
            claim.detach()
            self._check_age(schedule, tick)
            queue.enqueue([job])

    def _check_age(self, schedule: ScheduleDeclaration, tick: datetime) -> None:
        """Raise _TooLateError where this process was stopped for so long inside the claim that the tick is missed."""
        if not schedule.catch_up and self._time.now() - tick > ON_TIME:
            raise _TooLateError

    def _again(self, entry: Entry, error: str | None, *, base: float) -> None:
        if error is not None:
            self._notices.tried_again(entry, error)
        entry.again(self._time.now(), error, base=base)

    def _keep_house(self, timetable: Timetable) -> None:
        if time.monotonic() < self._keep_house_at:
            return
        self._keep_house_at = time.monotonic() + _KEEP_HOUSE_EVERY
        try:
            self._store.prune(self._retention)
            latest = self._latest([entry.schedule.name for entry in timetable.entries])
        except Exception as exc:
            log.warning("old ticks could not be pruned, later again: %s", error_text(exc))
            return
        # A claim that lies in the future makes every other one be lost, which looks as if others were quicker.
        for entry in timetable.entries:
            entry.last = latest.get(entry.schedule.name, entry.last)
        self._notices.silent(latest, self._time.now())

    # --- readiness ---------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Say how it is: degraded where it or a schedule fails, never unavailable, because the web still serves."""
        meta: dict[str, Any] = {"store": self._store.store, "scheduler": self.name}
        if not self.of_this_process:
            return Health(status="degraded", detail="the scheduler was started before a fork and does not run here")
        entries = list(self._timetable.entries) if self._timetable is not None else []
        found = troubles(entries, self._time.known)
        if self._loop.last_error is not None:
            found.insert(0, f"the scheduler fails: {self._loop.last_error}")
        if not self._loop.alive:
            found.insert(0, "the scheduler has stopped" if self._stopped else "the scheduler does not run")
        return Health(status="degraded" if found else "ok", detail="; ".join(found), meta=meta | shown(entries))


class _TooLateError(Exception):
    """A tick that is not made up for has become too old inside its claim."""
