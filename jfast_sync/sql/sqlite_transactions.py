"""SQLite's transactions, taken over from the driver: readers hold nothing, writers wait for their turn.

The driver's own way opens a deferred transaction before the first write and lets a savepoint's insert survive an
outer rollback. A deferred transaction that reads first and writes later fails with "locked" at once, whatever the
busy timeout says. So here: until its first write a transaction is not opened at all, and every statement reads what is
committed when it runs, as PostgreSQL's READ COMMITTED does; the first statement that may write is preceded by ``BEGIN
IMMEDIATE``, which waits for its turn. Savepoints set before that are remembered and set then.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from jfast_sync.context import current_job
from jfast_sync.errors import LeaseLostError, NotInJobError, UnsupportedError
from jfast_sync.forks import after_fork

__all__ = ["DOOMED", "configure", "ours", "read_any_text", "shrink_log", "take_over"]

log = logging.getLogger(__name__)

DOOMED: Final = "jfast_doomed"
_OURS: Final = "jfast_controlled"
_PENDING: Final = "jfast_savepoints"
_READ: Final = re.compile(r"\s*(?:SELECT|VALUES|EXPLAIN|PRAGMA)\b", re.IGNORECASE)
_WITH: Final = re.compile(r"\s*WITH\b", re.IGNORECASE)
_WRITES: Final = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_SAVEPOINT: Final = re.compile(r"\s*(SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO SAVEPOINT)\s+(\S+)\s*$", re.IGNORECASE)
_SINCE: Final = "jfast_writing_since"
_LONG: Final = 2.0  # seconds
_NOTHING: Final = "SELECT 1 WHERE 0"
_WRITER: Final = "jfast_writer"
_WAITS_FOR_ITSELF: Final = (
    "this thread has written in another session on the same SQLite file, which has one writer at a time: this write "
    "would wait for itself. Write in that session too, or commit it or roll it back before"
)

_writers: dict[tuple[str, int] | None, Any] = {}  # the connection that holds the write lock, by file and thread
after_fork(_writers.clear)


def take_over(engine: Engine) -> None:
    """Install the transaction control described above on an engine of ours."""
    event.listen(engine, "begin", _begin)
    event.listen(engine, "commit", _end)
    event.listen(engine, "rollback", _end)
    event.listen(engine, "before_cursor_execute", _before, retval=True)


def ours(connection: Connection) -> bool:
    """Say whether the connection's present transaction is controlled from here."""
    return _OURS in connection.info


def configure(connection: Any, _entry: ConnectionPoolEntry, *, busy_timeout: float) -> None:
    """Set up a fresh connection: WAL, a generous busy timeout for writers, a bounded log file."""
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {int(busy_timeout * 1000)}")
        # Asked first: the switch itself takes an exclusive lock, and a racing process would wait for it.
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode = WAL").fetchone()
        cursor.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        cursor.execute("PRAGMA journal_size_limit = 4194304")
        cursor.execute("PRAGMA foreign_keys = ON")
    finally:
        cursor.close()


def read_any_text(connection: Any, _entry: ConnectionPoolEntry) -> None:
    """Let bytes that are no text come out as such, rather than fail a whole batch of rows: for the queue's own use."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")


def _begin(connection: Connection) -> None:
    connection.info[_PENDING] = []
    connection.info[_OURS] = True


def _end(connection: Connection) -> None:
    connection.info.pop(_OURS, None)
    connection.info.pop(_PENDING, None)
    _writers.pop(connection.info.pop(_WRITER, None), None)
    held = time.monotonic() - connection.info.pop(_SINCE, time.monotonic())
    if held > _LONG:
        log.warning(
            "%s held SQLite's only write lock for %.1f s, and everybody else waited: write late, or in short sessions",
            _whoever(),
            held,
        )


def _whoever() -> str:
    try:
        return f"task {current_job().task}"
    except NotInJobError:
        return "a session"


def _before(
    connection: Connection, cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
) -> tuple[str, Any]:
    if DOOMED in connection.info:
        raise LeaseLostError("this connection was ended by the worker: the job has been told to stop")
    pending: list[str] | None = connection.info.get(_PENDING)
    if pending is None or _reads(statement):
        return statement, parameters
    savepoint = _SAVEPOINT.match(statement)
    if savepoint is not None:
        return (_NOTHING if _postponed(pending, *savepoint.groups()) else statement), parameters
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        _take_turn(connection, cursor)
    # Not before: without its BEGIN a later statement would be durable by itself.
    connection.info.pop(_PENDING)
    for name in pending:
        cursor.execute(f"SAVEPOINT {name}")
    return statement, parameters


def _take_turn(connection: Connection, cursor: Any) -> None:
    path = os.path.realpath(connection.engine.url.database or "")
    key = (path, threading.get_ident())
    if _holds_lock(_writers.get(key)):
        raise UnsupportedError(_WAITS_FOR_ITSELF)
    cursor.execute("BEGIN IMMEDIATE")
    connection.info[_SINCE] = time.monotonic()
    connection.info[_WRITER] = key
    _writers[key] = connection.connection.driver_connection


def _holds_lock(driver: Any) -> bool:
    try:
        return driver is not None and bool(driver.in_transaction)
    except sqlite3.ProgrammingError:  # closed meanwhile
        return False


def _reads(statement: str) -> bool:
    """Say whether a statement surely only reads; in doubt it writes."""
    return bool(_READ.match(statement) or (_WITH.match(statement) and not _WRITES.search(statement)))


def _postponed(pending: list[str], verb: str, name: str) -> bool:
    """Keep the list of savepoints of a transaction that has not written yet; nothing has to be undone in it."""
    if verb.upper() == "SAVEPOINT":
        pending.append(name)
    elif name in pending:
        at = pending.index(name)
        # A savepoint that is rolled back to stays set, one that is released goes, with all inside it.
        del pending[at if verb.upper().startswith("RELEASE") else at + 1 :]
    return True


def shrink_log(connection: Connection) -> None:
    """Write the log file back into the database and cut it to nothing; gives up at once when somebody reads.

    Run where nobody is busy: a reader that stays keeps the file growing, and only this makes it small again.
    """
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    try:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")
