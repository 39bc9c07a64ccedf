"""Whether a session writes to a certain database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database

__all__ = ["in_database"]


def in_database(session: Session, database: Database) -> bool:
    """Say whether what ``session`` writes ends up in ``database``, through its pool or another one."""
    try:
        engine = session.get_bind().engine
    except SQLAlchemyError:
        return False  # bound per table, or not at all
    return engine.pool is database.engine.pool or _place(engine.url) == _place(database.engine.url)


def _place(url: URL) -> tuple[Any, ...]:
    if url.get_backend_name() == "sqlite":
        return ("sqlite", os.path.realpath(url.database or ""))
    return (url.get_backend_name(), url.host or "", url.port or 5432, url.database)
