"""Log lines that carry request, tenant and job: JSON for machines, one readable line for people.

Everything printed is redacted, and nothing printed can forge a line: line breaks and control characters inside a
message are escaped. ``worker`` and ``serve`` call :func:`configure`; an application that configures logging by itself
can put :class:`ContextFilter` and the formatters into its own handlers.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from jfast_sync.context import current_job, origin
from jfast_sync.errors import NotInJobError
from jfast_sync.redact import redact, traceback_text

__all__ = ["ContextFilter", "JsonFormatter", "LineFormatter", "configure"]

_CONTEXT: Final = ("request_id", "tenant_id", "job_id", "task", "attempt")
_SHORT: Final = {"request_id": "request", "tenant_id": "tenant", "job_id": "job", "task": "task", "attempt": "attempt"}
_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", *_CONTEXT}


def configure(level: str = "INFO", *, json_logs: bool, enabled: bool = True, stream: TextIO | None = None) -> bool:
    """Send the process's log to ``stream``; return False, and change nothing, where the application already does.

    Args:
        level: the lowest level that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL.
        json_logs: JSON lines, or lines for people.
        enabled: False logs plainly, without context: the observability plugin is off.
        stream: standard error unless given.
    """
    root = logging.getLogger()
    if any(not isinstance(handler, _Handler) for handler in root.handlers):
        return False
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = _Handler(stream if stream is not None else sys.stderr)
    if enabled:
        handler.addFilter(ContextFilter())
        handler.setFormatter(JsonFormatter() if json_logs else LineFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
    return True


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second :func:`configure` replaces it and leaves others alone."""


class ContextFilter(logging.Filter):
    """Give every record request_id, tenant_id, job_id, task and attempt of the thread that logs; None where unknown."""

    def filter(self, record: logging.LogRecord) -> bool:
        here = origin()
        record.request_id, record.tenant_id = here.request_id, here.tenant_id
        try:
            job = current_job()
        except NotInJobError:
            record.job_id = record.task = record.attempt = None
        else:
            record.job_id, record.task, record.attempt = job.id, job.task, job.attempts
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the context where known, error, and ``extra`` values."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **_context(record),
        }
        trace = _trace(record)
        if trace:
            line["error"] = trace
        for name, value in record.__dict__.items():
            if name not in _USUAL:
                line.setdefault(name, redact(value) if isinstance(value, str) else value)
        # ASCII only: U+2028 and its like are line breaks to some readers.
        return json.dumps(line, default=_as_text, skipkeys=True)


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO    jfast_sync.worker: message  [job=... task=...]``; a traceback is indented."""

    def format(self, record: logging.LogRecord) -> str:
        known = " ".join(f"{_SHORT[name]}={_escaped(str(value))}" for name, value in _context(record).items())
        line = f"{_time(record)} {record.levelname:<8}{record.name}: {_escaped(_message(record))}"
        if known:
            line += f"  [{known}]"
        # Indented, so that a line break inside an error's text begins no line of its own.
        indented = ["    " + _escaped(text) for text in _trace(record).splitlines()]
        return "\n".join([line, *indented])


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return redact(record.getMessage())
    except Exception as exc:  # a wrong format or an argument that cannot be printed must not lose the line
        return f"{record.msg!r:.500} (its arguments do not fit: {type(exc).__name__})"


def _context(record: logging.LogRecord) -> dict[str, Any]:
    found = {name: getattr(record, name, None) for name in _CONTEXT}
    return {name: value for name, value in found.items() if value is not None}


def _trace(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    parts = [traceback_text(error) if error is not None else "", redact(record.stack_info or "")]
    return "\n".join(part for part in parts if part)


def _as_text(value: object) -> str:
    return redact(str(value))


def _escaped(text: str) -> str:
    """Write line breaks and control characters as Python would; a backslash stays one."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
