"""Who is asking: tenant, request id, trace and the running job, carried per thread.

A context variable is per thread and outlives what set it unless it is reset, so every binding here
is a ``with`` block: what was there before is there afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jfast_sync.errors import ConfigError, NotInJobError

if TYPE_CHECKING:
    from jfast_sync.core import JFast
    from jfast_sync.job import RunningJob

__all__ = [
    "Origin",
    "bind",
    "bind_app",
    "bind_job",
    "current_app",
    "current_job",
    "current_request_id",
    "current_tenant_id",
    "current_trace",
    "fall_back",
    "get_context",
    "install_app",
    "origin",
    "uninstall_app",
    "valid_name",
]

#: What may arrive from outside as a request id or a tenant: printable, no spaces, nothing that could forge a log line.
_OUTSIDE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where work comes from: the tenant, the request and the trace it belongs to (None where there is none)."""

    tenant_id: str | None = None
    request_id: str | None = None
    trace: Mapping[str, str] | None = field(default=None)


_NOWHERE: Final = Origin()
_origin: ContextVar[Origin] = ContextVar("jfast_origin", default=_NOWHERE)
_app: ContextVar[JFast | None] = ContextVar("jfast_app", default=None)
_job: ContextVar[RunningJob | None] = ContextVar("jfast_job", default=None)


_Found = Callable[[], "tuple[JFast, Origin] | None"]
_elsewhere: Final[list[_Found]] = []


def fall_back(find: _Found) -> None:
    """Ask ``find`` for app and origin where none is bound: in a thread that a request was handed to, for example."""
    if find not in _elsewhere:
        _elsewhere.append(find)


def _handed_on() -> tuple[JFast | None, Origin]:
    return next((found for find in _elsewhere if (found := find()) is not None), (None, _NOWHERE))


def origin() -> Origin:
    """Return the origin bound to this thread; all fields are None outside a request and a job."""
    bound = _origin.get()
    return bound if bound is not _NOWHERE else _handed_on()[1]


def current_tenant_id() -> str | None:
    """Return the tenant of the running request or job, or None outside both."""
    return origin().tenant_id


def current_request_id() -> str | None:
    """Return the id of the request that is running, or that caused the running job; None outside both."""
    return origin().request_id


def current_trace() -> Mapping[str, str] | None:
    """Return the W3C context that what is built now carries on; None outside a trace.

    Where the app's telemetry is on it is that of the span the thread is in, else that of the running request or job.
    """
    telemetry = getattr(_app_here(), "telemetry", None)
    carrier: Mapping[str, str] | None = telemetry.carrier() if telemetry is not None else None
    return carrier or origin().trace


def current_job() -> RunningJob:
    """Return the job this thread is running.

    Raises:
        NotInJobError: outside a handler.
    """
    job = _job.get()
    if job is None:
        raise NotInJobError("current_job() works inside a task's handler only; no job is running in this thread")
    return job


_installed: list[JFast] = []  # at most one


def install_app(app: JFast) -> None:
    """Make ``app`` the one that :func:`current_app` answers wherever none is bound; the latest built wins."""
    _installed[:] = [app]


def uninstall_app(app: JFast) -> None:
    """Forget ``app`` when it closes, unless another has taken its place."""
    if app in _installed:
        _installed.clear()


def _app_here() -> JFast | None:
    return _app.get() or _handed_on()[0] or next(iter(_installed), None)


def current_app() -> JFast:
    """Return the app of the running request or job, else the one this process built.

    Raises:
        ConfigError: there is none.
    """
    app = _app_here()
    if app is None:
        raise ConfigError(
            "no jfast app in this process: open one with `with jfast_sync.connect() as jf:`, or JFast(app) in Flask"
        )
    return app


def get_context() -> JFast:
    """Return the app of the running request or job, what a handler gets as TaskContext, else the one built here."""
    return current_app()


@contextmanager
def bind_app(app: JFast) -> Iterator[None]:
    """Make ``app`` the answer of :func:`current_app` in this thread inside the block (two apps in one process)."""
    token = _app.set(app)
    try:
        yield
    finally:
        _app.reset(token)


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
