"""Which backend works for which job, so that a successor can end what a stopped process left open.

A process that is paused inside a job's transaction keeps its locks for as long as it is paused: its idempotency key and
its rows would block the job's next start without end. PostgreSQL shows each transaction under the job's name; the
next start, which holds the lease, ends what still runs under it. SQLite has one writer and nothing to end.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from jfast_sync.errors import UnavailableError
from jfast_sync.sql.failures import translated

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database

__all__ = ["end_stale", "mark"]

log = logging.getLogger(__name__)

_PREFIX: Final = "jfast-sync job "
_LONGEST: Final = 63  # PostgreSQL cuts an application_name after that
_MARK: Final = text("SELECT set_config('application_name', :name, true)")
_END: Final = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE application_name = :name AND datname = current_database() AND pid <> pg_backend_pid()"
)


def mark(session: Session, job_id: str) -> None:
    """Show the session's transaction under the job's name in ``pg_stat_activity``, until it ends.

    Raises:
        UnavailableError: the server cannot be reached.
    """
    with translated():
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.execute(_MARK, {"name": _name(job_id)})


def end_stale(database: Database, job_id: str) -> int:
    """End every transaction that works for a job; only whoever holds the job's lease and has not begun may ask for it.

    None of them could commit its completion any more. Returns how many there were; a server that refuses is logged.
    """
    if database.dialect != "postgresql":
        return 0
    try:
        name = _name(job_id)
        ended = database.transact(lambda connection: int(connection.execute(_END, {"name": name}).scalar_one()))
    except UnavailableError as exc:
        log.warning("an earlier transaction of job %s, if there is one, could not be ended: %s", job_id, exc)
        return 0
    if ended:
        log.warning("ended %d transactions of job %s that its earlier workers had left open", ended, job_id)
    return ended


def _name(job_id: str) -> str:
    name = _PREFIX + job_id
    if len(name) <= _LONGEST and name.isascii():
        return name
    return _PREFIX + hashlib.sha256(job_id.encode()).hexdigest()[:40]
