"""The forms a DSN may take, turned into one that SQLAlchemy and the installed drivers understand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from jfast_sync.errors import ConfigError, MissingDriverError
from jfast_sync.redact import mask_dsn

__all__ = ["FORMS", "libpq", "parse", "require_driver"]

FORMS: Final = "postgresql://user@host/name, postgres://user@host/name or sqlite:///path"
_POSTGRES: Final = frozenset(
    {"postgres", "postgresql", "postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"}
)
_SQLITE: Final = frozenset({"sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"})


def parse(dsn: str) -> URL:
    """Return the URL with the driver this library uses: psycopg 3 or the standard library's sqlite3.

    A relative SQLite path is taken from the current folder and made absolute here, so that a later ``chdir``
    changes nothing.

    Raises:
        ConfigError: the text is no URL, names another database, or names a SQLite database in memory.
    """
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError):
        raise ConfigError(f"the database DSN {mask_dsn(dsn)!r} is not a URL; write {FORMS}") from None
    if url.drivername in _POSTGRES:
        return _postgres(url)
    if url.drivername in _SQLITE:
        return _sqlite(url)
    raise ConfigError(f"the database {url.drivername!r} is not supported; write {FORMS}")


def libpq(dsn: str) -> str:
    """Return a PostgreSQL DSN in the form libpq itself reads."""
    return parse(dsn).set(drivername="postgresql").render_as_string(hide_password=False)


def require_driver(url: URL) -> None:
    """Import psycopg, or say which extra brings it; refuse options it does not know, which no waiting would mend.

    Raises:
        MissingDriverError: it is not installed.
        ConfigError: the URL has an option that PostgreSQL's library does not know.
    """
    if url.get_backend_name() != "postgresql":
        return
    try:
        import psycopg
    except ImportError as exc:
        raise MissingDriverError(
            f'PostgreSQL needs the psycopg driver ({exc}): pip install "jfast-sync[postgres]"'
        ) from exc
    for name in url.query:
        try:
            psycopg.conninfo.make_conninfo(**{name: ""})
        except psycopg.ProgrammingError:
            raise ConfigError(
                f"the database DSN {mask_dsn(url.render_as_string(hide_password=True))!r} has the option {name!r}, "
                "which PostgreSQL's client library does not know"
            ) from None


def _postgres(url: URL) -> URL:
    if not url.database:
        raise ConfigError(f"the database DSN {mask_dsn(url.render_as_string(hide_password=True))!r} names no database")
    if url.drivername == "postgresql+asyncpg" and "ssl" in url.query:  # asyncpg's word for it
        mode = url.query["ssl"]
        url = url.difference_update_query(["ssl"]).update_query_dict({"sslmode": mode})
    return url.set(drivername="postgresql+psycopg")


def _sqlite(url: URL) -> URL:
    path = url.database or ""
    if path in ("", ":memory:") or url.query.get("mode") == "memory" or path.startswith("file::memory:"):
        raise ConfigError(
            "SQLite in memory gives every thread a database of its own, so no worker would see a job: "
            "use a file, such as sqlite:///jfast.db"
        )
    if path.startswith("file:"):
        raise ConfigError("SQLite is given by its path, not as a file: URI; write sqlite:///jfast.db")
    return url.set(drivername="sqlite+pysqlite", database=str(Path(path).expanduser().absolute()))
