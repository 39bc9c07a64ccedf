"""Whether a session writes to a certain database."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database

__all__ = ["in_database"]

_PORT: Final = "5432"
#: As libpq takes the options apart: at spaces that no backslash precedes; ``-c name=value`` or ``--name=value``.
_SEARCH_PATH: Final = re.compile(r"(?:^|\s)(?:-c\s*|--)search[_-]path=((?:\\.|\S)*)", re.IGNORECASE)


def in_database(session: Session, database: Database, *, any_schema: bool = False) -> bool:
    """Say whether what ``session`` writes ends up in ``database``, through its pool or another one.

    In doubt it does not: two engines whose URLs name no database may connect to any.

    Args:
        session: bound to one engine or connection.
        database: where it should end up.
        any_schema: the statements name their schema; the search path of the session's engine does not matter.
    """
    try:
        engine = session.get_bind().engine
    except SQLAlchemyError:
        return False  # bound per table, or not at all
    if engine.pool is database.engine.pool:
        return True
    place = _place(engine, any_schema)
    return place is not None and place == _place(database.engine, any_schema)


def _place(engine: Engine, any_schema: bool) -> tuple[Any, ...] | None:
    """Return where an engine's URL leads, None where it does not say."""
    url = engine.url
    if url.get_backend_name() == "sqlite":
        return ("sqlite", os.path.realpath(url.database or ""))
    given = engine.dialect.create_connect_args(url)[1]  # what the driver is told: the query's host outdoes the other
    name = given.get("dbname") or given.get("database") or given.get("service")
    if not name:
        return None
    path = None if any_schema else _search_path(str(given.get("options", "")))
    return (url.get_backend_name(), _servers(given), name, path)


def _servers(given: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    ports = str(given.get("port") or _PORT).split(",")
    last = ports[0] if len(ports) == 1 else _PORT  # one port is for all hosts
    return frozenset((host, port or _PORT) for host, port in zip_longest(hosts, ports[: len(hosts)], fillvalue=last))


def _search_path(options: str) -> str | None:
    found = _SEARCH_PATH.findall(options)
    return re.sub(r"[\\\s]", "", found[-1]) if found else None
