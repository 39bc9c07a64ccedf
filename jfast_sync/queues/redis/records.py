"""From what is stored to jobs, leases, dead letters and rows: pure."""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from jfast_sync.errors import PayloadError
from jfast_sync.job import DeadJob, Job, Lease
from jfast_sync.ports import JobRow
from jfast_sync.queues.redis.keys import Lane

__all__ = [
    "Meta",
    "Record",
    "at",
    "done_row",
    "flat",
    "joined_error",
    "micros",
    "packed",
    "shown_name",
    "split_error",
    "unpacked",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HEADER: Final = re.compile(rb"1 (\d+) (\d+) ([^\n]*)\n")
_GENERATED: Final = re.compile("[0-9a-f]{32}")
_META: Final = re.compile(rb"(\S+) (\d+) (\d+) (\d+) (\d+) (\d) (-?\d+) (.*)", re.DOTALL)
_LATEST: Final = 253_402_300_799_000_000  # the last second of the year 9999
_EARLIEST: Final = -62_135_596_800_000_000


def packed(job_id: str) -> bytes:
    """Return the name a job is stored under: 23 bytes for an id of 32 hex characters, which saves 32 bytes a job."""
    if _GENERATED.fullmatch(job_id):
        return b":" + b2a_base64(bytes.fromhex(job_id), newline=False)[:22]
    name = job_id.encode()
    return b":" + name if name.startswith(b":") else name


def unpacked(name: bytes) -> str:
    """Return the id of a stored name.

    Raises:
        ValueError: it is none.
    """
    if not name.startswith(b":"):
        return name.decode()
    if name.startswith(b"::"):
        return name[1:].decode()
    job_id = a2b_base64(name[1:] + b"==").hex()
    if packed(job_id) != name:
        raise ValueError("not the name of a job")
    return job_id


def shown_name(name: bytes) -> str:
    """Return the id of a stored name, or something to show of one that is none."""
    try:
        return unpacked(name)
    except ValueError:
        return name.decode(errors="replace")


def micros(instant: datetime) -> int:
    """Return the microseconds since 1970."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def at(microseconds: float) -> datetime:
    """Return the instant (UTC) of a number of microseconds since 1970, within what a datetime can hold."""
    return _EPOCH + timedelta(microseconds=int(min(max(microseconds, _EARLIEST), _LATEST)))


@dataclass(frozen=True, slots=True)
class Meta:
    """What changes during a job's life; all zero for one that was never claimed."""

    token: str = "-"
    attempts: int = 0
    lapses: int = 0
    claimed: int = 0
    snoozed: int = 0
    told: bool = False
    due: int = 0
    worker: str = ""

    @classmethod
    def of(cls, text: bytes | None) -> Self:
        """Read the stored form; None, or what is none, is a job that was never claimed."""
        found = _META.fullmatch(text or b"")
        if found is None:
            return cls()
        token, attempts, lapses, claimed, snoozed, told, due, worker = found.groups()
        return cls(
            token.decode(errors="replace"), int(attempts), int(lapses), int(claimed), int(snoozed),
            told == b"1", int(due), worker.decode(errors="replace"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One stored job: what its header says, and its body as it was enqueued."""

    id: str
    body: bytes
    created: int
    max_attempts: int
    lane: Lane

    @classmethod
    def of(cls, job_id: str, stored: bytes) -> Self:
        """Read the stored form; without a header, all of it is the body."""
        found = _HEADER.match(stored)
        if found is None:
            return cls(job_id, stored, 0, 1, Lane(0, "default"))
        created, most, lane = found.groups()
        return cls(job_id, stored[found.end() :], int(created), int(most), Lane.of(lane.decode(errors="replace")))

    def job(self, meta: Meta, due: float, error: str | None) -> Job:
        """Return the job.

        Raises:
            PayloadError: the body is not a job, or not this one.
        """
        job = Job.from_wire(
            self.body,
            attempts=meta.attempts,
            max_attempts=self.max_attempts or 1,
            available_at=at(due),
            created_at=at(self.created),
            error=error,
        )
        if job.id != self.id:
            raise PayloadError(f"not a job: stored as {self.id!r}, and its body names {job.id!r}")
        return job

    def shown(self, meta: Meta, due: float, error: str | None) -> tuple[Job, bool]:
        """Return the job, or what is known of one that cannot be decoded, and whether it could be."""
        try:
            return self.job(meta, due, error), True
        except PayloadError:
            known = Job(
                task="undecodable",
                id=self.id,
                queue=self.lane.queue,
                priority=min(max(self.lane.priority, -9), 9),
                attempts=meta.attempts,
                max_attempts=max(self.max_attempts, 1),
                available_at=at(due),
                created_at=at(self.created),
                tenant_id=None,
                request_id=None,
                trace=None,
                error=error,
            )
            return known, False

    def lease(self, meta: Meta, claimed: int, error: str | None) -> Lease:
        """Return the lease.

        Raises:
            PayloadError: the body is not a job, or not this one.
        """
        return Lease(
            job=self.job(meta, meta.due, error),
            token=meta.token,
            claimed_at=at(claimed),
            lapses=meta.lapses,
            snoozed_since=at(meta.snoozed) if meta.snoozed else None,
        )

    def dead(self, meta: Meta, died: float, stored_error: bytes | None) -> DeadJob:
        """Return the dead letter."""
        error, traceback = split_error(stored_error)
        job, decoded = self.shown(meta, meta.due or died, error)
        return DeadJob(job=job, died_at=at(died), traceback=traceback, raw=None if decoded else self.body)

    def row(self, meta: Meta, state: str, when: float, stored_error: bytes | None) -> JobRow:
        """Return the row of a listing; ``when`` is the due time, or the death of a dead letter."""
        waiting = state in ("ready", "delayed")
        job, _ = self.shown(meta, when if waiting else meta.due or when, split_error(stored_error)[0])
        return JobRow(
            job=job,
            state=state,
            worker=meta.worker if state == "running" else None,
            finished_at=at(when) if state == "dead" else None,
        )


def done_row(job_id: str, kept: bytes) -> JobRow:
    """Return the row of a finished job that is kept."""
    head, _, stored = kept.partition(b"\n")
    attempts, claimed, finished = (int(part) for part in head.split())
    meta = Meta(attempts=attempts, claimed=claimed)
    job, _ = Record.of(job_id, stored).shown(meta, claimed, None)
    return JobRow(job=job, state="done", finished_at=at(finished), ran_seconds=max(finished - claimed, 0) / 1_000_000)


def split_error(stored: bytes | None) -> tuple[str | None, str | None]:
    """Return error and traceback."""
    if stored is None:
        return None, None
    error, _, traceback = stored.decode(errors="replace").partition("\0")
    return error or None, traceback or None


def joined_error(error: str | None, traceback: str | None) -> str:
    """Return the stored form of an error; an empty text where there is none."""
    if error is None:
        return ""
    return f"{error}\0{traceback}" if traceback else error


def flat(values: Sequence[Any], width: int) -> list[Sequence[Any]]:
    """Cut a flat reply into rows of ``width`` values."""
    return [values[start : start + width] for start in range(0, len(values), width)]
