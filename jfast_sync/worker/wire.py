"""A lease and the end of an attempt as JSON, for the pipe between a worker and the child that runs a job alone."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from jfast_sync.job import Job, Lease
from jfast_sync.outcome import Bury, Done, Release, Retry
from jfast_sync.worker.attempt import Committed, Ended, Lost, Unknown

__all__ = ["ended_from", "ended_to", "lease_from", "lease_to"]

_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Done, Retry, Bury, Release, Committed, Lost, Unknown)
}


def lease_to(lease: Lease) -> dict[str, Any]:
    """Return a lease as JSON-ready data."""
    return {
        "job": lease.job.to_wire().decode(),
        "token": lease.token,
        "claimed_at": lease.claimed_at.isoformat(),
        "lapses": lease.lapses,
        "snoozed_since": lease.snoozed_since.isoformat() if lease.snoozed_since is not None else None,
    }


def lease_from(data: dict[str, Any]) -> Lease:
    """Rebuild a lease."""
    return Lease(
        job=Job.from_wire(data["job"]),
        token=data["token"],
        claimed_at=datetime.fromisoformat(data["claimed_at"]),
        lapses=data["lapses"],
        snoozed_since=datetime.fromisoformat(data["snoozed_since"]) if data["snoozed_since"] is not None else None,
    )


def ended_to(ended: Ended) -> dict[str, Any]:
    """Return how an attempt ended as JSON-ready data."""
    if isinstance(ended, Unknown):
        return {"kind": "Unknown", "otherwise": ended_to(ended.otherwise)}
    data = {"kind": type(ended).__name__, **asdict(ended)}
    if isinstance(ended, Retry) and ended.until is not None:
        data["until"] = ended.until.isoformat()
    return data


def ended_from(data: dict[str, Any]) -> Ended:
    """Rebuild how an attempt ended.

    Raises:
        ValueError: this is not such data.
    """
    fields = dict(data)
    kind = _KINDS.get(fields.pop("kind", ""))
    if kind is None:
        raise ValueError(f"not the end of an attempt: {data!r:.200}")
    if kind is Unknown:
        return Unknown(ended_from(fields["otherwise"]))  # type: ignore[arg-type]  # an Outcome by construction
    if isinstance(fields.get("until"), str):
        fields["until"] = datetime.fromisoformat(fields["until"])
    ended: Ended = kind(**fields)
    return ended
