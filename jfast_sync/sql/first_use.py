"""The tables, made sure of when a session that somebody else opened is the first to write to them.

``jf.session()`` and the queue see to them before a transaction is open. Here one is, and on SQLite, which has a single
writer, it may hold the very lock that making the tables would wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jfast_sync.errors import SchemaError
from jfast_sync.sql import schema
from jfast_sync.sql.failures import translated

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database

__all__ = ["FirstUse"]

_WAITS: Final = (
    "the tables are not there yet, and cannot be made while this session's transaction is open, since SQLite has one "
    'writer: call jf.setup() when the app starts, or run "jfast-sync db upgrade"'
)


class FirstUse:
    """Called before each use of the tables; looks once.

    Args:
        database: where they are.
        table: the queue's; None where the jobs are kept elsewhere.
        current_only: refuse tables that are not current instead of making them.
    """

    def __init__(self, database: Database, table: str | None, *, current_only: bool) -> None:
        self._database = database
        self._table = table
        self._current_only = current_only
        self._done = False

    def __call__(self, session: Session) -> None:
        """Make sure of the tables that ``session`` is about to write to; its transaction goes on whatever happens.

        Raises:
            SchemaError: they are not current, and may not or cannot be made now.
            UnavailableError: the database cannot be reached.
        """
        if self._done:
            return
        # Not one thread at a time: on SQLite the one inside may wait for the transaction of one that waits outside.
        found = self._found(session)
        if self._current_only:
            schema.refuse_other(found)
        elif not all(part.current for part in found):
            if self._database.dialect == "sqlite" and _is_open(session):
                raise SchemaError(_WAITS)
            schema.upgrade(self._database, self._table)
        self._done = True

    def _found(self, session: Session) -> list[schema.Status]:
        if self._database.dialect != "sqlite":
            return schema.status(self._database, self._table)
        with translated():  # another connection might first have to wait for this one, to switch the file to WAL
            return schema.status_on(session.connection(), self._table)


def _is_open(session: Session) -> bool:
    with translated():
        driver: Any = session.connection().connection.driver_connection
    return bool(driver.in_transaction)
