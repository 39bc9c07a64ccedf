"""What concerns the file of a SQLite database: its name in errors, and what happens when it is deleted or replaced.

An open connection to a file that was deleted goes on with it, and nobody else sees what it writes.

Jobs enqueued into it would be accepted and lost, and a worker would wait for ever beside the new file. So a connection
is given out only while its file is the one that has the name.
"""

from __future__ import annotations

import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, ExceptionContext, event
from sqlalchemy.exc import DisconnectionError

__all__ = ["follow"]

_FILE: Final = "jfast_file"
_ABOUT_THE_FILE: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


def follow(engine: Engine) -> None:
    """Have an engine's pooled connections opened again when another file has taken the name of theirs.

    And have errors that are about the file name it: SQLite's own say "unable to open database file".
    """
    path = os.path.realpath(engine.url.database or "")
    event.listen(engine, "handle_error", partial(_name, path))
    event.listen(engine, "connect", partial(_note, path))
    event.listen(engine, "checkout", partial(_compare, path))


def _name(path: str, context: ExceptionContext) -> None:
    error = context.original_exception
    # The lower byte: what is above it tells kinds of one error apart.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _ABOUT_THE_FILE and path not in str(error):
        error.args = (f"{error} ({path})", *error.args[1:])


def _note(path: str, _connection: Any, record: Any) -> None:
    record.info[_FILE] = _identity(path)


def _compare(path: str, _connection: Any, record: Any, _proxy: Any) -> None:
    if record.info.get(_FILE) != _identity(path):
        raise DisconnectionError(f"the file {path} was deleted or replaced")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
