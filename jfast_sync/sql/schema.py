"""Creating and upgrading the tables, and saying whether they are current; safe when many processes do it at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, text

from jfast_sync.errors import SchemaError
from jfast_sync.sql.catalogue import exists as _exists
from jfast_sync.sql.schema_steps import Component, components

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["Status", "refuse_other", "require_current", "status", "status_on", "upgrade"]

_DEFAULT: Final = "jfast_jobs"
_VERSIONS: Final = "jfast_schema"


@dataclass(frozen=True, slots=True)
class Status:
    """Where one component stands: ``version`` in the database (0: not there), ``latest`` known here, steps to run."""

    component: str
    version: int
    latest: int
    pending: Sequence[str]

    @property
    def current(self) -> bool:
        return self.version == self.latest


def status(database: Database, table: str | None = _DEFAULT) -> list[Status]:
    """Say where each component stands; changes nothing.

    Raises:
        UnavailableError: the database cannot be reached.
    """
    return database.transact(lambda connection: status_on(connection, table))


def status_on(connection: Connection, table: str | None = _DEFAULT) -> list[Status]:
    """Say as :func:`status` does where each component stands, as seen from a transaction that is open already."""
    return [_status(connection, part) for part in components(table)]


def require_current(database: Database, table: str | None = _DEFAULT) -> None:
    """Do nothing when the tables are current.

    Raises:
        SchemaError: they are missing, older or newer than this library; the message says what to do.
    """
    refuse_other(status(database, table))


def refuse_other(found: Iterable[Status]) -> None:
    """Do nothing when all that was found is current; raise as :func:`require_current` does."""
    for part in found:
        _refuse_newer(part)
        if not part.current:
            raise SchemaError(
                f"the tables of {part.component} are at version {part.version}, this jfast-sync needs {part.latest}: "
                'run "jfast-sync db upgrade"'
            )


def upgrade(database: Database, table: str | None = _DEFAULT) -> list[str]:
    """Bring every component up to date and return the titles of the steps that were run.

    Workers of the version before may go on working meanwhile; processes that do this together take turns.

    Raises:
        SchemaError: the database is newer than this library.
        UnavailableError: it cannot be reached.
    """
    done: list[str] = []
    for part in components(table):
        # Looked at without the lock first: at nearly every start there is nothing to do.
        found = database.transact(partial(_status, part=part))
        _refuse_newer(found)
        if not found.current:
            done += database.transact(partial(_upgrade, part=part))
    return done


def _upgrade(connection: Connection, part: Component) -> list[str]:
    _take_turns(connection, part.lock)
    found = _status(connection, part)
    _refuse_newer(found)
    steps = [step for step in part.steps if step.version > found.version]
    for step in steps:
        step.apply(connection)
    if steps:
        connection.execute(
            text(
                f"INSERT INTO {_VERSIONS} (component, version) VALUES (:component, :version) "
                "ON CONFLICT (component) DO UPDATE SET version = excluded.version"
            ),
            {"component": part.name, "version": part.latest},
        )
    return [step.title for step in steps]


def _take_turns(connection: Connection, key: str) -> None:
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(hashtext(:key))")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # a large index takes its time
        connection.execute(lock, {"key": key})
        if _exists(connection, _VERSIONS):
            return
        connection.execute(lock, {"key": "jfast:setup:versions"})  # the components share this table
    # On SQLite the statement takes the file's only write lock even where there is nothing to create.
    connection.exec_driver_sql(
        f"CREATE TABLE IF NOT EXISTS {_VERSIONS} (component text PRIMARY KEY NOT NULL, version integer NOT NULL)"
    )


def _status(connection: Connection, part: Component) -> Status:
    version = 0
    if _exists(connection, _VERSIONS):
        asked = text(f"SELECT version FROM {_VERSIONS} WHERE component = :component")
        version = connection.execute(asked, {"component": part.name}).scalar() or 0
    pending = [step.title for step in part.steps if step.version > version]
    return Status(part.name, version, part.latest, pending)


def _refuse_newer(found: Status) -> None:
    if found.version > found.latest:
        raise SchemaError(
            f"the tables of {found.component} are at version {found.version}, and this jfast-sync knows them up to "
            f"{found.latest}: another service runs a newer release; upgrade jfast-sync here too"
        )
