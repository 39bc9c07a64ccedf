"""The seams on one page: what the worker, the outbox and the command know of a backend.

A backend is a :class:`Queue`. What only some can do is a type of its own - :class:`SharesTransaction`,
:class:`DeadLetters`, :class:`Inspectable` - tested with ``isinstance``, so that a backend that cannot do
something says so by type and at start. All methods may be called from any thread unless stated otherwise;
all raise :class:`~jfast_sync.errors.UnavailableError` when the server cannot be reached. ``tests/contract``
runs one behavioural suite over every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from jfast_sync.event import Event
from jfast_sync.job import DeadJob, Job, Lease
from jfast_sync.outcome import Settlement

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = [
    "Cancelled",
    "ClaimLostError",
    "Claimed",
    "Clock",
    "DeadFilter",
    "DeadLetters",
    "EventBus",
    "Held",
    "Inspectable",
    "JobRow",
    "Publication",
    "Queue",
    "Selection",
    "Settled",
    "SharesTransaction",
    "Stats",
    "TickClaim",
    "TickStore",
]


class Clock(Protocol):
    """Where a backend without a clock of its own (memory, SQLite) takes the time from; tests give a fake one."""

    def now(self) -> datetime:
        """Return the present instant, aware, UTC."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Who claims, and what: ``worker`` is fresh at every process start; None takes every queue, every task."""

    worker: str
    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None


class Settled(Enum):
    """What became of one settlement."""

    APPLIED = "applied"
    REFUSED = "refused"  # the token is no longer current; nothing was changed
    BUSY = "busy"  # somebody holds the row right now (its own handler's transaction, usually); ask again


class Held(Enum):
    """What an extension found."""

    YES = "yes"  # renewed for a full visibility timeout
    LOST = "lost"  # the token is no longer current
    BUSY = "busy"  # the row is locked, so somebody holds it; not renewed this time
    CANCEL = "cancel"  # renewed, and somebody asked for the running job to be stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How many jobs are where, and done and failed attempts per task. Never scans: dead and done may be capped.

    ``oldest_ready`` is the age in seconds of the job that has been due longest, None where nothing waits.
    ``warnings`` are the backend's own remarks for ``/ready`` (no persistence, a foreign file system, ...).
    """

    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    oldest_ready: float | None = None
    done_by_task: Mapping[str, int] = field(default_factory=dict)
    failed_by_task: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@runtime_checkable
class Queue(Protocol):
    """Durable storage of jobs, with leases.

    ``backend`` names the kind in messages and ``/queue/stats``.
    """

    backend: str

    def setup(self) -> None:
        """Create what is missing; idempotent, safe when many processes start together.

        Raises:
            SchemaError: what is there is newer than this library, or cannot be used.
        """
        ...

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        """Store checked jobs in one transaction of its own, durably when it returns; return the ids newly stored.

        A job whose id is already there is left as it is. ``max_attempts`` is set on every job.
        """
        ...

    def claim(self, limit: int, wait: float, selection: Selection) -> list[Lease]:
        """Lease up to ``limit`` due jobs, higher priority first, then the longest due.

        Waits up to ``wait`` seconds for the first one; :meth:`wake` ends the wait. Called from one thread at a time.
        Every lease has a fresh token and runs for the queue's visibility timeout; ``attempts`` counts the start.
        A stored job that cannot be decoded becomes a dead letter with its reason and stops nobody.
        """
        ...

    def wake(self) -> None:
        """End a waiting :meth:`claim` at once; from any thread, from a signal handler too."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes in one batch, each only where its token is current; one answer each, in order.

        A row that is locked by somebody is BUSY and never waited for. A lease that lapsed but that nobody took
        is still current.
        """
        ...

    def extend(self, leases: Sequence[Lease]) -> list[Held]:
        """Renew leases for a full visibility timeout from the backend's clock; one answer each, in order."""
        ...

    def recover(self) -> int:
        """Put lapsed leases back, the attempt spent, ``lapses`` counted; return how many.

        A lapse is a suspicion, never a verdict: ``attempts`` is kept below ``max_attempts``, so that the job has a
        last start, alone. After an outage the holders get a lease's time to come back first.
        """
        ...

    def record(self, done: Mapping[str, int], failed: Mapping[str, int]) -> None:
        """Add to the counters of finished and failed attempts per task; for observation only."""
        ...

    def stats(self) -> Stats:
        """Count, without scanning."""
        ...

    def close(self) -> None:
        """Let go of every connection; idempotent."""
        ...


@runtime_checkable
class SharesTransaction(Protocol):
    """A queue that lives in a database, where a session's own transaction can hold its writes."""

    def shares(self, session: Session) -> bool:
        """Say whether ``session`` writes to the queue's database."""
        ...

    def enqueue_in(self, session: Session, jobs: Sequence[Job]) -> list[str]:
        """Store jobs in the session's transaction: they exist if and only if it commits. Workers wake on commit."""
        ...

    def complete_in(self, session: Session, lease: Lease) -> bool:
        """Write success in the session's transaction; False when the token is not current (then roll back)."""
        ...

    def committed(self, lease: Lease) -> bool:
        """Find out, in a fresh transaction, whether an earlier :meth:`complete_in` was committed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters: all given conditions hold. ``since`` is the earliest death (aware)."""

    task: str | None = None
    tenant_id: str | None = None
    since: datetime | None = None


@runtime_checkable
class DeadLetters(Protocol):
    """A queue whose dead letters can be listed, replayed and thrown away."""

    def dead(self, where: DeadFilter, *, limit: int, after: str | None = None) -> list[DeadJob]:
        """List newest first, up to ``limit``; ``after`` is the id of the last one of the page before."""
        ...

    def find_dead(self, job_id: str) -> DeadJob | None: ...

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back with attempts and lapses at zero; return the ids that were there."""
        ...

    def revive_where(self, where: DeadFilter) -> int:
        """Put back every dead letter that matches, in batches; return how many."""
        ...

    def discard(self, ids: Sequence[str]) -> list[str]:
        """Remove dead letters for good; return the ids that were there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One stored job as a listing shows it; ``state`` is ready, delayed, running, dead or done."""

    job: Job
    state: str
    worker: str | None = None
    finished_at: datetime | None = None
    ran_seconds: float | None = None


class Cancelled(Enum):
    """What a cancellation found."""

    REMOVED = "removed"  # it was ready or delayed; it is gone
    # It is running: it gets its stop signal within a third of a lease, and unless it succeeds it does not wait again:
    # where it fails, is released or its lease lapses, it is a dead letter.
    TOLD = "told"
    UNKNOWN = "unknown"
    DEAD = "dead"  # a dead letter: discard it instead


@runtime_checkable
class Inspectable(Protocol):
    """A queue that can find a job by its id and list what it holds."""

    def find(self, job_id: str) -> JobRow | None: ...

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
        ...

    def cancel(self, job_id: str) -> Cancelled: ...


class Claimed(Enum):
    """What an attempt to claim a tick found."""

    WON = "won"
    LOST = "lost"  # somebody has claimed it, or a later one of the same schedule
    BUSY = "busy"  # somebody is claiming it right now and may yet give it back; ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class TickClaim:
    """``session``, where the store has one, is the transaction the claim is part of: a job in it shares its fate.

    ``detach`` is called right before the job goes elsewhere: the claim is made sure of, and nothing that others wait
    for is held across the network.

    Raises:
        ClaimLostError: by ``detach``: the claim is another's meanwhile.
    """

    outcome: Claimed
    session: Session | None = None
    detach: Callable[[], None] = lambda: None


class ClaimLostError(Exception):
    """A tick's claim was not its holder's any more: it was stopped in between, and others have gone on."""


@runtime_checkable
class TickStore(Protocol):
    """Which ticks of which schedules have been claimed, by instant; shared by every process, except in memory.

    ``store`` names the kind in messages and in ``/ready``.
    """

    store: str

    def now(self) -> datetime:
        """Return the store's present instant, aware, UTC: its clock decides what is due, in every process."""
        ...

    def latest(self, names: Sequence[str]) -> dict[str, datetime]:
        """Return the latest claimed tick of each schedule (UTC); one that has none is left out."""
        ...

    def claiming(self, name: str, tick: datetime, *, by: str) -> AbstractContextManager[TickClaim]:
        """Claim a tick for the block: it counts when the block ends, and is given back when the block raises.

        Only an instant after every one claimed before can be won. Waits about a second at most for somebody who is
        claiming the same tick.

        Raises:
            ClaimLostError: at the block's end: a later tick was claimed meanwhile, and this one is given back.
            UnavailableError: the store cannot be reached; raised at the block's end, the claim may or may not count.
        """
        ...

    def prune(self, retention: timedelta) -> int:
        """Forget ticks older than ``retention``, never a schedule's latest; return how many."""
        ...

    def close(self) -> None:
        """Let go of what is the store's own; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One event on its way to a topic."""

    topic: str
    event: Event


@runtime_checkable
class EventBus(Protocol):
    """Where events for other services go. ``bus`` names the kind in messages."""

    bus: str

    def send(self, publications: Sequence[Publication]) -> list[Exception | None]:
        """Send events; one answer each, in order: None where it is durable, else why it is not.

        Events of one topic and key stay in their order, and after one that failed none of them is sent.

        Raises:
            UnavailableError: the server cannot be reached; some may have been sent.
        """
        ...

    def close(self) -> None:
        """Let go of every connection; idempotent."""
        ...
