"""The outbox's table: the asynchronous sibling's columns, its narrow ones widened, and our own beside them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

from jfast_sync.errors import ConfigError
from jfast_sync.sql.catalogue import columns, exists, is_postgres, run

__all__ = ["outbox_step"]

_TABLE: Final = "jfast_outbox"
_SEQUENCE: Final = "jfast_outbox_seq"

#: What the sibling has too: column, PostgreSQL type, SQLite type (times are microseconds since the epoch, UTC).
_SHARED: Final = (
    ("id", "varchar(128) PRIMARY KEY", "TEXT NOT NULL UNIQUE"),
    ("kind", "varchar(16) NOT NULL", "TEXT NOT NULL"),
    ("destination", "varchar(255) NOT NULL", "TEXT NOT NULL"),
    ("payload", "jsonb NOT NULL", "TEXT NOT NULL"),
    ("message_key", "varchar(255)", "TEXT"),
    ("request_id", "varchar(128)", "TEXT"),
    ("tenant_id", "varchar(255)", "TEXT"),
    ("status", "varchar(16) NOT NULL DEFAULT 'pending'", "TEXT NOT NULL DEFAULT 'pending'"),
    ("attempts", "integer NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT 0"),
    ("created_at", "timestamptz NOT NULL DEFAULT now()", "INTEGER NOT NULL DEFAULT 0"),
    ("available_at", "timestamptz NOT NULL DEFAULT now()", "INTEGER NOT NULL DEFAULT 0"),
    ("published_at", "timestamptz", "INTEGER"),
    ("last_error", "text", "TEXT"),
)
#: Ours. ``seq`` is the order of writing. A leased row is one whose ``available_at`` a relay has moved ahead, so that
#: the sibling's relay leaves it alone too; ``lease_token`` says whose. ``held``: waits behind an older row of its key.
#: ``due_at``: when a delayed job's row was due.
_OWN: Final = (
    ("lease_token", "text", "TEXT"),
    ("held", "integer NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT 0"),
    ("due_at", "timestamptz", "INTEGER"),
    ("died_at", "timestamptz", "INTEGER"),
)
#: Each covers exactly one question, so that no cost grows with the rows the question is not about.
_INDEXES: Final = (
    ("due_idx", "(available_at, seq)", "status = 'pending' AND held = 0"),
    ("key_idx", "(destination, message_key, seq)", "status = 'pending' AND message_key IS NOT NULL"),
    ("held_idx", "(destination, message_key, seq)", "status = 'pending' AND message_key IS NOT NULL AND held = 1"),
    ("age_idx", "(coalesce(due_at, created_at))", "status = 'pending'"),
    ("failing_idx", "(available_at)", "status = 'pending' AND attempts > 0"),
    ("dead_idx", "(coalesce(died_at, created_at), id)", "status = 'dead'"),
    ("published_idx", "(published_at)", "status = 'published'"),
)
_STORAGE: Final = (
    "autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 1000"
)
_NUMBER_OLD: Final = text(
    f"UPDATE {_TABLE} AS o SET seq = n.seq FROM "
    f"(SELECT id, nextval('{_SEQUENCE}') AS seq FROM (SELECT id FROM {_TABLE} "
    "WHERE status <> 'published' AND seq IS NULL ORDER BY created_at, id) AS ordered) AS n WHERE o.id = n.id"
)


def outbox_step(connection: Connection) -> None:
    """Create the outbox, or add to the sibling's what is ours."""
    (_postgres if is_postgres(connection) else _sqlite)(connection)
    for suffix, key, where in _INDEXES:
        if not exists(connection, f"{_TABLE}_{suffix}"):
            run(connection, f"CREATE INDEX IF NOT EXISTS {_TABLE}_{suffix} ON {_TABLE} {key} WHERE {where}")


def _postgres(connection: Connection) -> None:
    if not exists(connection, _TABLE):
        body = ", ".join(f"{name} {kind}" for name, kind, _ in _SHARED)
        run(connection, f"CREATE TABLE {_TABLE} ({body})")
    there = columns(connection, _TABLE)
    _refuse_foreign(there)
    adds = [f"ADD COLUMN {name} {kind}" for name, kind, _ in _OWN if name not in there]
    if "seq" not in there:
        # A default added with the column would rewrite every row; set afterwards, it is for new rows only.
        run(connection, f"CREATE SEQUENCE IF NOT EXISTS {_SEQUENCE}")
        adds += ["ADD COLUMN seq bigint", f"ALTER COLUMN seq SET DEFAULT nextval('{_SEQUENCE}')"]
    if adds:
        widened = ["ALTER COLUMN id TYPE varchar(128)", "ALTER COLUMN request_id TYPE varchar(128)"]
        run(connection, f"ALTER TABLE {_TABLE} {', '.join([*widened, *adds])}, SET ({_STORAGE})")
        run(connection, f"ALTER SEQUENCE {_SEQUENCE} OWNED BY {_TABLE}.seq")
        connection.execute(_NUMBER_OLD)


def _sqlite(connection: Connection) -> None:
    there = columns(connection, _TABLE)
    if not there:
        body = ", ".join(f"{name} {kind}" for name, _, kind in (*_SHARED, *_OWN))
        run(connection, f"CREATE TABLE {_TABLE} (seq INTEGER PRIMARY KEY, {body})")
        return
    _refuse_foreign(there)
    if "seq" not in there:
        raise ConfigError(f"the table {_TABLE} was not made by jfast-sync: it has no column seq; rename it")
    for name, _, kind in _OWN:
        if name not in there:
            run(connection, f"ALTER TABLE {_TABLE} ADD COLUMN {name} {kind}")


def _refuse_foreign(there: set[str]) -> None:
    lost = [name for name, _, _ in _SHARED if name not in there]
    if lost:
        raise ConfigError(f"the table {_TABLE} is not an outbox: it has no column {', '.join(lost)}")
