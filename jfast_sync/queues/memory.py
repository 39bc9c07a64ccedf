"""The queue in one process's memory: the reference every other backend is measured against, and fast tests.

Jobs are gone when the process ends. They are held in their wire form, so a handler never shares a payload with
anybody. Several :class:`MemoryQueue` objects on one :class:`MemoryStore` behave like several processes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Final, assert_never

from jfast_sync.job import DeadJob, Job, Lease
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Bury, Done, Release, Retry, Settlement
from jfast_sync.ports import Cancelled, Clock, DeadFilter, Held, JobRow, Selection, Settled, Stats
from jfast_sync.queues.memory_store import MemoryStore, Row, SystemClock

__all__ = ["MemoryQueue"]

_STATES: Final = ("running", "ready", "delayed", "dead", "done")


class MemoryQueue:
    """A queue that lives and dies with this process.

    Args:
        visibility_timeout: seconds a lease runs for.
        keep_done: seconds that finished jobs stay findable; 0 forgets them at once.
        clock: where the time comes from; None takes the machine's.
        store: the jobs; queues that share one behave like processes that share a server. None makes a new one.
    """

    backend: str = "memory"
    _look_again = 1.0  # seconds: a wall clock that jumped, or a fake one, is noticed after this long

    def __init__(
        self,
        *,
        visibility_timeout: float = 60.0,
        keep_done: float = 0.0,
        clock: Clock | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        self.store = store if store is not None else MemoryStore()
        self._visibility = timedelta(seconds=visibility_timeout)
        self._keep_done = timedelta(seconds=keep_done)
        self._clock = clock if clock is not None else SystemClock()
        # True: wake() was called. False: something may be due. A SimpleQueue, because its put() is re-entrant:
        # a signal handler may run it while this very thread is inside get(), where a lock would wait for itself.
        self._bell: SimpleQueue[bool] = SimpleQueue()

    def setup(self) -> None:
        """Do nothing: memory is always there."""

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        """Store jobs; return the ids newly stored."""
        now = self._clock.now()
        rows = [Row.of(job, now) for job in jobs]  # encoded before the first is stored: all or nothing
        with self.store.lock:
            stored = [row.id for row in rows if self.store.add(row, now)]
            if stored:
                self.store.ring()
        return stored

    def claim(self, limit: int, wait: float, selection: Selection) -> list[Lease]:
        """Lease up to ``limit`` due jobs, waiting up to ``wait`` seconds for the first one."""
        deadline = Deadline(wait)
        woken = self._heard()
        try:
            while True:
                with self.store.lock:
                    leases = self._take(limit, selection)
                    if leases or woken or deadline.passed:
                        return leases
                    self.store.bells.add(self._bell)
                    pause = self._until_next(deadline)
                with suppress(Empty):
                    if self._bell.get(timeout=pause) or self._heard():
                        return []  # a worker that stops must not take what it has just released
        finally:
            with self.store.lock:
                self.store.bells.discard(self._bell)

    def wake(self) -> None:
        """End a waiting claim at once; when none waits, the next one does not."""
        self._bell.put(True)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes, each only where its token is current."""
        with self.store.lock:
            now = self._clock.now()
            answers = [self._settle(settlement, now) for settlement in settlements]
            self.store.forget_done(now - self._keep_done)
            self.store.ring()
        return answers

    def extend(self, leases: Sequence[Lease]) -> list[Held]:
        """Renew leases for a full visibility timeout."""
        with self.store.lock:
            until = self._clock.now() + self._visibility
            return [self._extend(lease, until) for lease in leases]

    def recover(self) -> int:
        """Put lapsed leases back, below their last attempt, so that each has one more start."""
        with self.store.lock:
            now = self._clock.now()
            lapsed = [row for row in self.store.states["running"].values() if row.locked_until <= now]
            for row in lapsed:
                row.lapses += 1
                row.attempts = min(row.attempts, row.max_attempts - 1)
                row.error = f"the lease of {row.worker} ran out; the worker died or was cut off"
                self.store.give_back(row, now)
            self.store.forget_done(now - self._keep_done)
            if lapsed:
                self.store.ring()
        return len(lapsed)

    def record(self, done: Mapping[str, int], failed: Mapping[str, int]) -> None:
        """Add to the counters of finished and failed attempts per task."""
        with self.store.lock:
            self.store.done_by_task.update(done)
            self.store.failed_by_task.update(failed)

    def stats(self) -> Stats:
        """Count jobs by state."""
        with self.store.lock:
            return self.store.stats(self._clock.now())

    def close(self) -> None:
        """End a waiting claim; the jobs stay in the store."""
        self.wake()

    def dead(self, where: DeadFilter, *, limit: int, after: str | None = None) -> list[DeadJob]:
        """List dead letters, newest first; an ``after`` that is no longer there has nothing behind it."""
        with self.store.lock:
            rows: Iterable[Row] = reversed(self.store.states["dead"].values())
            if after is not None:
                remaining = iter(rows)
                any(row.id == after for row in remaining)  # reads up to and including it
                rows = remaining
            return [row.dead_job() for row in islice((row for row in rows if row.matches(where)), limit)]

    def find_dead(self, job_id: str) -> DeadJob | None:
        """Return the dead letter with this id, or None."""
        with self.store.lock:
            row = self.store.states["dead"].get(job_id)
            return row.dead_job() if row is not None else None

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back with attempts and lapses at zero; return the ids that were there."""
        with self.store.lock:
            now = self._clock.now()
            rows = self.store.dead_rows(ids)
            for row in rows:
                row.attempts, row.lapses, row.error, row.traceback, row.snoozed_since = 0, 0, None, None, None
                self.store.put_back(row, now)
            if rows:
                self.store.ring()
            return [row.id for row in rows]

    def revive_where(self, where: DeadFilter) -> int:
        """Put back every dead letter that matches; return how many."""
        with self.store.lock:
            ids = [row.id for row in self.store.states["dead"].values() if row.matches(where)]
        return len(self.revive(ids))

    def discard(self, ids: Sequence[str]) -> list[str]:
        """Remove dead letters for good; return the ids that were there."""
        with self.store.lock:
            rows = self.store.dead_rows(ids)
            for row in rows:
                self.store.remove(row)
            return [row.id for row in rows]

    def find(self, job_id: str) -> JobRow | None:
        """Return the job with this id, or None."""
        with self.store.lock:
            self.store.promote(self._clock.now())
            row = self.store.find(job_id)
            return row.job_row() if row is not None else None

    def jobs(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        limit: int = 50,
    ) -> list[JobRow]:
        """List jobs that match, by state (running, ready, delayed, dead, done), then as they would be claimed."""
        wanted = {name: value for name, value in (("task", task), ("queue", queue), ("tenant_id", tenant_id)) if value}
        with self.store.lock:
            self.store.promote(self._clock.now())
            found: list[Row] = []
            for name in _STATES if state is None else (state,):
                rows = self.store.states.get(name, {}).values()
                listed = [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())]
                found += reversed(listed) if name in ("dead", "done") else sorted(listed, key=lambda row: row.rank)
            return [row.job_row() for row in found[:limit]]

    def cancel(self, job_id: str) -> Cancelled:
        """Remove a waiting job, or have a running one told at its next renewal."""
        with self.store.lock:
            row = self.store.rows.get(job_id)
            if row is None:
                return Cancelled.UNKNOWN
            if row.state == "dead":
                return Cancelled.DEAD
            if row.state == "running":
                row.cancelled = True
                return Cancelled.TOLD
            self.store.remove(row)
            return Cancelled.REMOVED

    def _heard(self) -> bool:
        """Empty the bell; return whether wake() was among what it held."""
        woken = False
        with suppress(Empty):
            while True:
                woken = self._bell.get_nowait() or woken
        return woken

    def _until_next(self, deadline: Deadline) -> float:
        pause, due = deadline.remaining(self._look_again), self.store.next_due()
        return pause if due is None else min(pause, max((due - self._clock.now()).total_seconds(), 0.001))

    def _take(self, limit: int, selection: Selection) -> list[Lease]:
        now = self._clock.now()
        self.store.promote(now)
        leases: list[Lease] = []
        while len(leases) < limit and (row := self.store.pop(selection)) is not None:
            job = row.decoded()
            if job is None:
                self.store.bury(row, now)
            else:
                leases.append(self._lease(row, job, selection.worker, now))
        return leases

    def _lease(self, row: Row, job: Job, worker: str, now: datetime) -> Lease:
        row.attempts += 1
        row.token, row.worker = secrets.token_hex(16), worker
        row.claimed_at, row.locked_until = now, now + self._visibility
        self.store.move(row, "running")
        return Lease(
            job=replace(job, attempts=row.attempts),
            token=row.token,
            claimed_at=now,
            lapses=row.lapses,
            snoozed_since=row.snoozed_since,
        )

    def _held(self, lease: Lease) -> Row | None:
        row = self.store.states["running"].get(lease.job.id)
        return row if row is not None and row.token == lease.token else None

    def _extend(self, lease: Lease, until: datetime) -> Held:
        row = self._held(lease)
        if row is None:
            return Held.LOST
        row.locked_until = until
        return Held.CANCEL if row.cancelled else Held.YES

    def _settle(self, settlement: Settlement, now: datetime) -> Settled:
        row = self._held(settlement.lease)
        if row is None:
            return Settled.REFUSED
        match settlement.outcome:
            case Done():
                self.store.finish(row, now, keep=self._keep_done > timedelta(0))
            case Bury(error, traceback):
                row.error, row.traceback = error, traceback
                self.store.bury(row, now)
            case Release():
                row.attempts = max(row.attempts - 1, 0)
                self.store.give_back(row, now)
            case Retry() as retry:
                self._retry(row, retry, now)
            case _ as never:
                assert_never(never)
        return Settled.APPLIED

    def _retry(self, row: Row, retry: Retry, now: datetime) -> None:
        if retry.refund:
            row.attempts = max(row.attempts - 1, 0)
        if retry.snooze and row.snoozed_since is None:
            row.snoozed_since = row.claimed_at
        if retry.error is not None:
            row.error, row.traceback = retry.error, retry.traceback
        row.available_at = retry.until if retry.until is not None else now + timedelta(seconds=retry.delay)
        self.store.give_back(row, now)
