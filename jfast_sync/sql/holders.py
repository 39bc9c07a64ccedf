"""Which backend works for which job, so that a successor can end what a stopped process left open.

A process that is paused inside a job's transaction keeps its locks for as long as it is paused: its idempotency key and
its rows would block the job's next start without end. PostgreSQL shows each transaction under the job's name and how
often its workers had vanished before; a start after one more ends what still runs under its predecessors' names. A
worker that was itself overtaken before it came to that finds nobody: its successors count higher. SQLite has one
writer and nothing to end.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from jfast_sync.errors import SchemaError, UnavailableError
from jfast_sync.sql.failures import translated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from jfast_sync.job import Lease
    from jfast_sync.sql.engine import Database

__all__ = ["end_stale", "mark"]

log = logging.getLogger(__name__)

_PREFIX: Final = "jfast-sync job "
_LONGEST: Final = 63  # PostgreSQL cuts an application_name after that
_REMEMBERED: Final = 50
_MARK: Final = text("SELECT pg_backend_pid(), set_config('application_name', :name, true)")
_END: Final = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE application_name = ANY(:names) AND datname = current_database() AND pid <> pg_backend_pid()"
)


def mark(connection: Connection, lease: Lease) -> int | None:
    """Show a connection's transaction under the job's name in ``pg_stat_activity``, until it ends.

    Returns the id of the process that serves it, None on SQLite.

    Raises:
        UnavailableError: the server cannot be reached.
    """
    if connection.dialect.name != "postgresql":
        return None
    with translated():
        return int(connection.execute(_MARK, {"name": _name(lease.job.id, lease.lapses)}).scalar_one())


def end_stale(database: Database, lease: Lease) -> int:
    """End every transaction that an earlier, vanished worker has left open for a job.

    None of them could commit its completion any more. Returns how many there were; a server that refuses is logged.
    """
    if database.dialect != "postgresql" or not lease.lapses:
        return 0
    names = [_name(lease.job.id, lapses) for lapses in range(max(lease.lapses - _REMEMBERED, 0), lease.lapses)]
    try:
        ended = database.transact(lambda connection: int(connection.execute(_END, {"names": names}).scalar_one()))
    except (UnavailableError, SchemaError) as exc:
        log.warning("an earlier transaction of job %s, if there is one, could not be ended: %s", lease.job.id, exc)
        return 0
    if ended:
        log.warning("ended %d transactions of job %s that its earlier workers had left open", ended, lease.job.id)
    return ended


def _name(job_id: str, lapses: int) -> str:
    name = f"{_PREFIX}{job_id}/{lapses}"
    if len(name) <= _LONGEST and name.isascii():
        return name
    return f"{_PREFIX}{hashlib.sha256(job_id.encode()).hexdigest()[:36]}/{lapses}"
