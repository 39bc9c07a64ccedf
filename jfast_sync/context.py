"""Who is asking: tenant, request id, trace and the running job, carried per thread.

A context variable is per thread and outlives what set it unless it is reset, so every binding here
is a ``with`` block: what was there before is there afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jfast_sync.errors import NotInJobError

if TYPE_CHECKING:
    from jfast_sync.job import RunningJob

__all__ = ["Origin", "bind", "bind_job", "current_job", "current_request_id", "current_tenant_id", "origin", "valid_name"]

#: What may arrive from outside as a request id or a tenant: printable, no spaces, nothing that could forge a log line.
_OUTSIDE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where work comes from: the tenant, the request and the trace it belongs to (None where there is none)."""

    tenant_id: str | None = None
    request_id: str | None = None
    trace: Mapping[str, str] | None = field(default=None)


_origin: ContextVar[Origin] = ContextVar("jfast_origin", default=Origin())
_job: ContextVar[RunningJob | None] = ContextVar("jfast_job", default=None)


def origin() -> Origin:
    """Return the origin bound to this thread; all fields are None outside a request and a job."""
    return _origin.get()


def current_tenant_id() -> str | None:
    """Return the tenant of the running request or job, or None outside both."""
    return _origin.get().tenant_id


def current_request_id() -> str | None:
    """Return the id of the request that is running, or that caused the running job; None outside both."""
    return _origin.get().request_id


def current_job() -> RunningJob:
    """Return the job this thread is running.

    Raises:
        NotInJobError: outside a handler.
    """
    job = _job.get()
    if job is None:
        raise NotInJobError("current_job() works inside a task's handler only; no job is running in this thread")
    return job


@contextmanager
def bind(new: Origin) -> Iterator[None]:
    """Make ``new`` the origin of everything this thread does inside the block."""
    token = _origin.set(new)
    try:
        yield
    finally:
        _origin.reset(token)


@contextmanager
def bind_job(job: RunningJob) -> Iterator[None]:
    """Make ``job`` the answer of :func:`current_job` inside the block."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


def valid_name(text: str) -> bool:
    """Say whether a request id or tenant from outside is safe to keep: 1 to 128 plain characters."""
    return _OUTSIDE_NAME.fullmatch(text) is not None
