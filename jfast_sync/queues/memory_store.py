"""What :class:`~jfast_sync.queues.memory.MemoryQueue` keeps: rows by state, and heaps in the order of claiming.

Everything here is called with ``lock`` held. Heap entries are never searched for: an entry whose row has moved on
carries an old ticket, and is dropped when it comes to the top.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from queue import SimpleQueue
from typing import Final, Self

from jfast_sync.errors import PayloadError
from jfast_sync.job import DeadJob, Job
from jfast_sync.outcome import CANCELLED
from jfast_sync.ports import DeadFilter, JobRow, Selection, Stats

__all__ = ["MemoryStore", "Row", "SystemClock"]

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the present instant, aware, UTC."""
        return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class Row:
    """One stored job: its wire form, and what changes during its life."""

    id: str
    task: str
    wire: bytes
    created_at: datetime
    available_at: datetime
    queue: str = "default"
    tenant_id: str | None = None
    priority: int = 0
    attempts: int = 0
    max_attempts: int = 1
    lapses: int = 0
    snoozed_since: datetime | None = None
    error: str | None = None
    traceback: str | None = None
    state: str = "ready"
    token: str | None = None
    worker: str | None = None
    claimed_at: datetime = _NEVER
    locked_until: datetime = _NEVER
    finished_at: datetime = _NEVER
    cancelled: bool = False
    undecodable: bool = False
    ticket: int = 0

    @classmethod
    def of(cls, job: Job, now: datetime) -> Self:
        """Return a new row for a job that is stored ``now``."""
        due = now + job.delay if job.delay is not None else job.available_at or now
        return cls(
            id=job.id,
            task=job.task,
            queue=job.queue,
            tenant_id=job.tenant_id,
            priority=job.priority,
            wire=job.to_wire(),
            attempts=job.attempts,
            max_attempts=job.max_attempts or 1,
            error=job.error,
            created_at=now,
            available_at=due.astimezone(UTC),
        )

    def matches(self, where: DeadFilter) -> bool:
        """Say whether a dead row is meant by the filter."""
        return (
            (where.task is None or self.task == where.task)
            and (where.tenant_id is None or self.tenant_id == where.tenant_id)
            and (where.since is None or self.finished_at >= where.since)
        )

    @property
    def rank(self) -> tuple[int, datetime, int]:
        """The order of claiming: higher priority, then longest due, then first come."""
        return -self.priority, self.available_at, self.ticket

    def decoded(self) -> Job | None:
        """Return the job, or None when the stored form cannot be decoded, which then is the row's error."""
        try:
            job = Job.from_wire(self.wire)
        except PayloadError as exc:
            self.undecodable, self.error = True, f"PayloadError: {exc}"
            return None
        return replace(
            job,
            attempts=self.attempts,
            available_at=self.available_at,
            created_at=self.created_at,
            error=self.error,
        )

    def shown(self) -> Job:
        """Return the job, or what is known of one that cannot be decoded."""
        known = Job(
            id=self.id,
            task=self.task,
            queue=self.queue,
            priority=self.priority,
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            available_at=self.available_at,
            created_at=self.created_at,
            tenant_id=self.tenant_id,
            request_id=None,
            trace=None,
            error=self.error,
        )
        return known if self.undecodable else self.decoded() or known

    def dead_job(self) -> DeadJob:
        """Return the row as a dead letter."""
        job = self.shown()
        raw = self.wire if self.undecodable else None
        return DeadJob(job=job, died_at=self.finished_at, traceback=self.traceback, raw=raw)

    def job_row(self) -> JobRow:
        """Return the row as a listing shows it."""
        done = self.state == "done"
        return JobRow(
            job=self.shown(),
            state=self.state,
            worker=self.worker if self.state == "running" else None,
            finished_at=self.finished_at if self.state in ("done", "dead") else None,
            ran_seconds=(self.finished_at - self.claimed_at).total_seconds() if done else None,
        )


@dataclass(slots=True, eq=False)
class MemoryStore:
    """The jobs of any number of queues in this process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: dict[str, Row] = field(default_factory=dict)
    states: dict[str, dict[str, Row]] = field(
        default_factory=lambda: {name: {} for name in ("ready", "delayed", "running", "dead", "done")}
    )
    bells: set[SimpleQueue[bool]] = field(default_factory=set)
    done_by_task: Counter[str] = field(default_factory=Counter)
    failed_by_task: Counter[str] = field(default_factory=Counter)
    _lanes: dict[tuple[str, str], list[tuple[tuple[int, datetime, int], str]]] = field(default_factory=dict)
    _later: list[tuple[datetime, int, str]] = field(default_factory=list)
    _tickets: count[int] = field(default_factory=lambda: count(1))

    def ring(self) -> None:
        """Tell every waiting claim that something may be due."""
        for bell in self.bells:
            bell.put(False)

    def add(self, row: Row, now: datetime) -> bool:
        """Store a new row; False when its id is already there."""
        if row.id in self.rows:
            return False
        self.rows[row.id] = self.states[row.state][row.id] = row
        self.put_back(row, now)
        return True

    def find(self, job_id: str) -> Row | None:
        """Return the row, live or dead, else the finished one that is still kept."""
        return self.rows.get(job_id) or self.states["done"].get(job_id)

    def dead_rows(self, ids: Iterable[str]) -> list[Row]:
        """Return the dead letters among ``ids``, each once, in that order."""
        dead = self.states["dead"]
        return [dead[job_id] for job_id in dict.fromkeys(ids) if job_id in dead]

    def move(self, row: Row, state: str) -> None:
        """Change the row's state; it becomes the newest of that state."""
        self.states[row.state].pop(row.id, None)
        row.state = state
        self.states[state][row.id] = row

    def put_back(self, row: Row, now: datetime) -> None:
        """Make the row wait: for its time, or to be claimed."""
        row.token, row.worker, row.cancelled, row.ticket = None, None, False, next(self._tickets)
        if row.available_at > now:
            self.move(row, "delayed")
            heapq.heappush(self._later, (row.available_at, row.ticket, row.id))
        else:
            self.move(row, "ready")
            heapq.heappush(self._lanes.setdefault((row.queue, row.task), []), (row.rank, row.id))

    def give_back(self, row: Row, now: datetime) -> None:
        """Make a running row wait again, or a dead letter where somebody has cancelled it meanwhile."""
        if row.cancelled:
            row.error = CANCELLED if row.error is None else f"{CANCELLED}: {row.error}"
            self.bury(row, now)
        else:
            self.put_back(row, now)

    def promote(self, now: datetime) -> None:
        """Make ready what has become due."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, job_id = heapq.heappop(self._later)
            self.put_back(self.rows[job_id], now)

    def next_due(self) -> datetime | None:
        """Return when the next delayed row is due, None where none waits."""
        while self._later:
            due, ticket, job_id = self._later[0]
            row = self.rows.get(job_id)
            if row is not None and row.ticket == ticket:
                return due
            heapq.heappop(self._later)
        return None

    def pop(self, selection: Selection) -> Row | None:
        """Take the row that is next for this selection out of its lane; the caller moves it on."""
        heads = [
            (lane[0], key)
            for key in list(self._lanes)
            if (selection.queues is None or key[0] in selection.queues)
            and (selection.tasks is None or key[1] in selection.tasks)
            and (lane := self._trimmed(key))
        ]
        if not heads:
            return None
        (_, job_id), key = min(heads)
        heapq.heappop(self._lanes[key])
        return self.rows[job_id]

    def bury(self, row: Row, now: datetime) -> None:
        """Make the row a dead letter."""
        row.token, row.finished_at, row.ticket = None, now, next(self._tickets)
        self.move(row, "dead")

    def finish(self, row: Row, now: datetime, *, keep: bool) -> None:
        """Drop a finished row, or keep it apart, where its id is free again."""
        self.remove(row)
        if keep:
            row.token, row.finished_at, row.error = None, now, None
            self.move(row, "done")

    def remove(self, row: Row) -> None:
        """Forget the row."""
        del self.rows[row.id], self.states[row.state][row.id]

    def forget_done(self, before: datetime) -> None:
        """Forget finished rows that ended before an instant."""
        done = self.states["done"]
        for job_id in [row.id for row in done.values() if row.finished_at <= before]:
            del done[job_id]

    def stats(self, now: datetime) -> Stats:
        """Count the rows by state, and what was recorded."""
        self.promote(now)
        ready = self.states["ready"]
        oldest = min((row.available_at for row in ready.values()), default=None)
        return Stats(
            ready=len(ready),
            delayed=len(self.states["delayed"]),
            running=len(self.states["running"]),
            dead=len(self.states["dead"]),
            oldest_ready=None if oldest is None else max((now - oldest).total_seconds(), 0.0),
            done_by_task=dict(self.done_by_task),
            failed_by_task=dict(self.failed_by_task),
        )

    def _trimmed(self, key: tuple[str, str]) -> list[tuple[tuple[int, datetime, int], str]]:
        """Return a lane whose first entry, if any, stands for a ready row."""
        lane = self._lanes[key]
        while lane:
            (_, _, ticket), job_id = lane[0]
            row = self.rows.get(job_id)
            if row is not None and row.state == "ready" and row.ticket == ticket:
                return lane
            heapq.heappop(lane)
        del self._lanes[key]
        return lane
