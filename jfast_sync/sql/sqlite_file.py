"""A SQLite file that was deleted or replaced: an open connection goes on with the old one, which nobody else sees.

Jobs enqueued into it would be accepted and lost, and a worker would wait for ever beside the new file. So a connection
is given out only while its file is the one that has the name.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

__all__ = ["follow"]

_FILE: Final = "jfast_file"


def follow(engine: Engine) -> None:
    """Have an engine's pooled connections opened again when another file has taken the name of theirs."""
    path = os.path.realpath(engine.url.database or "")
    event.listen(engine, "connect", partial(_note, path))
    event.listen(engine, "checkout", partial(_compare, path))


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
