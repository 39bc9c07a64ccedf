"""Rows to jobs and back, without I/O; a row that cannot be decoded is a value too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jfast_sync.errors import PayloadError
from jfast_sync.job import DeadJob, Job, Lease
from jfast_sync.outcome import Bury, Retry, Settlement
from jfast_sync.ports import JobRow

__all__ = [
    "batch",
    "claimed_order",
    "dead_job",
    "insertable",
    "job_of",
    "job_row",
    "lease_of",
    "lenient_job_of",
    "micros",
    "moment",
    "settled_fields",
    "storable",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = 100 * 366 * 86_400.0
_ERROR_LENGTH: Final = 20_000


def micros(value: datetime | None) -> int | None:
    """Return microseconds since the epoch for an aware datetime."""
    return None if value is None else (value - _EPOCH) // _MICROSECOND


def moment(value: Any) -> datetime | None:
    """Return the aware UTC datetime for microseconds since the epoch.

    Raises:
        ValueError: it is infinite, or no year from 1 to 9999 holds it.
    """
    if value is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=round(value))
    except (OverflowError, TypeError) as exc:
        raise ValueError(f"the time {value!r} is out of range") from exc


def batch(items: Iterable[Mapping[str, Any]]) -> str:
    """Return the one JSON text that a statement takes its rows from."""
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))


def storable(text: str | None) -> str | None:
    """Return a text that every database can store: no NUL, no half of a surrogate pair, bounded."""
    if text is None:
        return None
    return text[:_ERROR_LENGTH].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def insertable(job: Job) -> dict[str, Any]:
    """Return what the insert statement takes for one job.

    Raises:
        PayloadError: the payload is not JSON.
    """
    try:
        payload = json.dumps(job.payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        trace = None if job.trace is None else json.dumps(dict(job.trace), ensure_ascii=False, allow_nan=False)
        payload.encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise PayloadError(f"the payload of {job.task} is not JSON: {exc}") from exc
    return {
        "id": job.id,
        "task": job.task,
        "payload": payload,
        "queue": job.queue,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts or 1,
        "available_at": micros(job.available_at),
        "delay": min(job.delay.total_seconds(), _LONGEST) if job.delay else 0.0,
        "request_id": job.request_id,
        "tenant_id": job.tenant_id,
        "trace": trace,
    }


def settled_fields(settlement: Settlement) -> dict[str, Any]:
    """Return what a settling statement takes for one outcome."""
    fields: dict[str, Any] = {"id": settlement.lease.job.id, "token": settlement.lease.token}
    match settlement.outcome:
        case Retry() as retry:
            fields |= {
                "delay": min(max(retry.delay, 0.0), _LONGEST),
                "until": micros(retry.until),
                "error": storable(retry.error),
                "traceback": storable(retry.traceback),
                "refund": retry.refund,
                "snooze": retry.snooze,
            }
        case Bury() as bury:
            fields |= {"error": storable(bury.error), "traceback": storable(bury.traceback)}
        case _:
            pass
    return fields


def job_of(row: Mapping[str, Any]) -> Job:
    """Rebuild the job of a row.

    Raises:
        ValueError: something in it cannot be decoded; PayloadError says what.
    """
    payload = _object("payload", row["payload"])
    assert payload is not None
    return Job(
        id=row["id"],
        task=row["task"],
        payload=payload,
        queue=row["queue"],
        priority=row["priority"],
        attempts=row["attempts"],
        max_attempts=max(row["max_attempts"], 1),
        available_at=moment(row["available_at"]),
        created_at=moment(row["created_at"]),
        request_id=row["request_id"],
        tenant_id=row["tenant_id"],
        trace=_object("trace", row["trace"]),
        error=storable(row["last_error"]),
    )


def lease_of(row: Mapping[str, Any]) -> Lease:
    """Rebuild what a claim returned; raises as :func:`job_of`."""
    claimed_at = moment(row["started_at"])
    assert claimed_at is not None
    return Lease(
        job=job_of(row),
        token=row["lease_token"],
        claimed_at=claimed_at,
        lapses=row["lapses"],
        snoozed_since=moment(row["snoozed_since"]),
    )


def lenient_job_of(row: Mapping[str, Any]) -> tuple[Job, bytes | None]:
    """Rebuild a job for a listing, where a row that cannot be decoded must show too; then with its raw payload."""
    try:
        return job_of(row), None
    except (ValueError, TypeError, AssertionError):
        raw = str(row["payload"]).encode("utf-8", "surrogateescape")
    return (
        Job(
            id=_shown(row["id"], 128),
            task=_shown(row["task"], 255),
            payload={},
            attempts=max(int(row["attempts"] or 0), 0),
            max_attempts=max(int(row["max_attempts"] or 1), 1),
            created_at=_moment_or_none(row["created_at"]),
            request_id=None,
            tenant_id=_shown(row["tenant_id"], 255) if row["tenant_id"] else None,
            trace=None,
            error=storable(row["last_error"]),
        ),
        raw,
    )


def dead_job(row: Mapping[str, Any]) -> DeadJob:
    """Rebuild a dead letter."""
    job, raw = lenient_job_of(row)
    return DeadJob(job=job, died_at=_moment_or_none(row["died_at"]) or _EPOCH, traceback=row["traceback"], raw=raw)


def job_row(row: Mapping[str, Any]) -> JobRow:
    """Rebuild one line of a listing."""
    job, _raw = lenient_job_of(row)
    status = row["status"]
    state = ("delayed" if row["delayed"] else "ready") if status == "pending" else status
    finished, started = _moment_or_none(row["finished_at"]), _moment_or_none(row["started_at"])
    ran = (finished - started).total_seconds() if finished and started and state == "done" else None
    return JobRow(job=job, state=state, worker=row["worker"], finished_at=finished, ran_seconds=ran)


def _object(name: str, text: Any) -> dict[str, Any] | None:
    if text is None and name == "trace":
        return None
    try:
        text.encode()  # SQLite gives bytes that are no text as halves of surrogate pairs
        value = json.loads(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise PayloadError(f"its {name} cannot be decoded: {type(exc).__name__}: {exc}") from None
    if value is None and name == "trace":
        return None
    if not isinstance(value, dict):
        raise PayloadError(f"its {name} is not a JSON object")
    return value


def _shown(text: Any, limit: int) -> str:
    printable = "".join(c if c.isprintable() else "\ufffd" for c in str(text))[:limit]
    return printable or "?"


def _moment_or_none(value: Any) -> datetime | None:
    try:
        return moment(value)
    except ValueError:
        return None


def claimed_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort claimed rows as they were asked for: RETURNING promises no order."""
    return (-row["priority"], row["available_at"], row["id"])
