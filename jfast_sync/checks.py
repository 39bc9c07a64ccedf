"""What ``/ready`` learns of an app's database and queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jfast_sync.errors import JFastError
from jfast_sync.health import Health
from jfast_sync.redact import error_text

if TYPE_CHECKING:
    from jfast_sync.core import JFast
    from jfast_sync.sql.engine import Database

__all__ = ["database", "queue"]


def database(primary: Database) -> Health:
    """Ask the primary database for a number."""
    try:
        # Not Database.check: whoever asks bounds the time already, and its thread would be one more per poll.
        primary.transact(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    except JFastError as exc:
        return Health(status="unavailable", detail=error_text(exc), critical=True)
    return Health(detail=f"{primary.dialect} answers", critical=True, meta={"dialect": primary.dialect})


def queue(app: JFast) -> Health:
    """Count the queue; dead letters, a backend's own remarks and a failing scheduler are degraded."""
    backend = app.queue.backend
    try:
        stats = app.queue.stats()
    except JFastError as exc:
        meta = {"backend": backend.backend}
        return Health(status="unavailable", detail=error_text(exc), critical=True, meta=meta)
    scheduling = app.scheduling.health()
    remarks = [*stats.warnings, *filter(None, [scheduling.detail])]
    if stats.dead:
        remarks.insert(0, f"{stats.dead} dead letters: see jfast-sync jobs dead")
    return Health(
        status="degraded" if remarks else "ok",
        detail="; ".join(remarks),
        critical=True,
        meta={
            "backend": backend.backend,
            "ready": stats.ready,
            "delayed": stats.delayed,
            "running": stats.running,
            "dead": stats.dead,
            "oldest_ready_seconds": stats.oldest_ready,
            "scheduler": scheduling.meta,
        },
    )
