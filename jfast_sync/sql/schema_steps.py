"""The tables, as numbered steps: each idempotent, each safe while workers of the version before still work.

A step never drops or renames. It asks the catalogue first, because even ``ADD COLUMN IF NOT EXISTS`` takes an
exclusive lock that every claim would wait behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from jfast_sync.errors import ConfigError
from jfast_sync.sql.catalogue import columns as _columns
from jfast_sync.sql.catalogue import exists as _exists
from jfast_sync.sql.catalogue import run as _run
from jfast_sync.sql.schema_outbox import outbox_step

__all__ = ["Component", "Step", "components", "table_name"]

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class Step:
    """One numbered change; ``apply`` may run on a database where all or part of it was done before."""

    version: int
    title: str
    apply: Callable[[Connection], None]


@dataclass(frozen=True, slots=True)
class Component:
    """Tables that are versioned together, and the key under which processes take turns in setting them up."""

    name: str
    lock: str
    steps: Sequence[Step]

    @property
    def latest(self) -> int:
        return self.steps[-1].version


def table_name(name: str) -> str:
    """Return ``name`` when it may be a table's.

    Raises:
        ConfigError: it holds anything but a-z, 0-9 and _, starts with a digit or is longer than 41 characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a table's name: use a-z, 0-9 and _, not a digit first, up to 41 characters"
        )
    return name


def components(table: str | None) -> list[Component]:
    """Return what a database with the queue's table ``table`` consists of; None: the jobs are kept elsewhere."""
    inbox = Step(1, "inbox in jfast_inbox", _inbox)
    outbox = Step(1, "outbox in jfast_outbox", outbox_step)
    ticks = Step(1, "ticks in jfast_schedule_ticks", _ticks)
    # The locks' keys are the sibling's, so that its services and ours take turns too.
    framework = [
        Component("jfast_inbox", "jfast:setup:framework-tables", [inbox]),
        Component("jfast_outbox", "jfast:setup:framework-tables", [outbox]),
        Component("jfast_schedule_ticks", "jfast:setup:framework-tables", [ticks]),
    ]
    return framework if table is None else [_queue(table), *framework]


def _queue(table: str) -> Component:
    jobs = Step(1, f"jobs in {table}", lambda connection: _jobs(connection, table_name(table)))
    return Component(table, f"jfast:setup:{table}", [jobs])


# --- the jobs ----------------------------------------------------------------------------------------------------

#: What the asynchronous sibling has too: column, PostgreSQL type, SQLite type. SQLite's times are microseconds since
#: the epoch, UTC, so that they compare as numbers.
_SHARED: Final = (
    ("id", "text PRIMARY KEY", "TEXT PRIMARY KEY NOT NULL"),
    ("task", "text NOT NULL", "TEXT NOT NULL"),
    ("payload", "jsonb NOT NULL DEFAULT '{}'", "TEXT NOT NULL DEFAULT '{}'"),
    ("attempts", "integer NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT 0"),
    ("max_attempts", "integer NOT NULL DEFAULT 3", "INTEGER NOT NULL DEFAULT 3"),
    ("available_at", "timestamptz NOT NULL DEFAULT now()", "INTEGER NOT NULL DEFAULT 0"),
    ("locked_until", "timestamptz", "INTEGER"),
    ("request_id", "text", "TEXT"),
    ("tenant_id", "text", "TEXT"),
    ("status", "text NOT NULL DEFAULT 'pending'", "TEXT NOT NULL DEFAULT 'pending'"),
    ("last_error", "text", "TEXT"),
    ("created_at", "timestamptz NOT NULL DEFAULT now()", "INTEGER NOT NULL DEFAULT 0"),
)
#: Ours, each nullable or defaulted, so that the sibling's inserts and old workers do not notice them.
_OWN: Final = (
    ("trace", "jsonb", "TEXT"),
    ("queue", "text NOT NULL DEFAULT 'default'", "TEXT NOT NULL DEFAULT 'default'"),
    ("priority", "smallint NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT 0"),
    ("lease_token", "text", "TEXT"),
    ("lapses", "integer NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT 0"),
    ("worker", "text", "TEXT"),
    ("traceback", "text", "TEXT"),
    ("snoozed_since", "timestamptz", "INTEGER"),
    ("started_at", "timestamptz", "INTEGER"),
    ("finished_at", "timestamptz", "INTEGER"),
    ("died_at", "timestamptz", "INTEGER"),
    ("cancel_requested", "boolean NOT NULL DEFAULT false", "INTEGER NOT NULL DEFAULT 0"),
    ("unique_key", "text", "TEXT"),  # reserved for unique jobs
    ("concurrency_key", "text", "TEXT"),  # reserved for limits per key
)
#: Each covers exactly one question, so that no cost grows with the rows the question is not about.
_INDEXES: Final = (
    ("due_idx", "(priority DESC, available_at)", "status = 'pending'"),
    ("queue_due_idx", "(queue, priority DESC, available_at)", "status = 'pending'"),
    ("running_idx", "(locked_until)", "status = 'running'"),
    ("dead_idx", "(coalesce(died_at, created_at), id)", "status = 'dead'"),
    ("done_idx", "(finished_at)", "status = 'done'"),
)
#: A queue's rows live for seconds: vacuum by count, not by share, or dead versions pile up in front of every claim.
_STORAGE: Final = (
    "autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 1000"
)


def _jobs(connection: Connection, table: str) -> None:
    postgres = connection.dialect.name == "postgresql"
    side = 1 if postgres else 2
    if not _columns(connection, table):
        body = ", ".join(f"{column[0]} {column[side]}" for column in (*_SHARED, *_OWN))
        tail = f" WITH ({_STORAGE})" if postgres else ""
        _run(connection, f"CREATE TABLE {table} ({body}){tail}")
    else:
        _add_missing(connection, table, side)
    for suffix, key, where in _INDEXES:
        if not _exists(connection, f"{table}_{suffix}"):
            _run(connection, f"CREATE INDEX IF NOT EXISTS {table}_{suffix} ON {table} {key} WHERE {where}")
    if not _exists(connection, f"{table}_counters"):
        _run(
            connection,
            f"CREATE TABLE {table}_counters (task text PRIMARY KEY NOT NULL, done bigint NOT NULL DEFAULT 0, "
            "failed bigint NOT NULL DEFAULT 0)",
        )


def _add_missing(connection: Connection, table: str, side: int) -> None:
    there = _columns(connection, table)
    missing = [column for column in _OWN if column[0] not in there]
    lost = [column[0] for column in _SHARED if column[0] not in there]
    if lost:
        raise ConfigError(f"the table {table} is not a jobs table: it has no column {', '.join(lost)}")
    if side == 1:
        if missing:  # one statement, one short lock; none of the columns rewrites a row
            adds = ", ".join(f"ADD COLUMN {column[0]} {column[1]}" for column in missing)
            _run(connection, f"ALTER TABLE {table} {adds}, SET ({_STORAGE})")
        return
    for column in missing:
        _run(connection, f"ALTER TABLE {table} ADD COLUMN {column[0]} {column[2]}")


# --- the inbox ---------------------------------------------------------------------------------------------------


def _inbox(connection: Connection) -> None:
    postgres = connection.dialect.name == "postgresql"
    when = "timestamptz NOT NULL DEFAULT now()" if postgres else "INTEGER NOT NULL DEFAULT 0"
    if not _exists(connection, "jfast_inbox"):
        _run(
            connection,
            "CREATE TABLE jfast_inbox (consumer varchar(128) NOT NULL, message_id varchar(128) NOT NULL, "
            f"processed_at {when}, PRIMARY KEY (consumer, message_id))",
        )
    if not _exists(connection, "jfast_inbox_processed_idx"):
        _run(connection, "CREATE INDEX IF NOT EXISTS jfast_inbox_processed_idx ON jfast_inbox (processed_at)")


# --- the ticks ---------------------------------------------------------------------------------------------------


def _ticks(connection: Connection) -> None:
    postgres = connection.dialect.name == "postgresql"
    when, now = ("timestamptz", "now()") if postgres else ("INTEGER", "0")
    if not _exists(connection, "jfast_schedule_ticks"):
        _run(
            connection,
            f"CREATE TABLE jfast_schedule_ticks (name varchar(255) NOT NULL, fire_at {when} NOT NULL, "
            f"claimed_by varchar(255), claimed_at {when} NOT NULL DEFAULT {now}, PRIMARY KEY (name, fire_at))",
        )
    if not _exists(connection, "jfast_schedule_ticks_fire_idx"):
        _run(
            connection,
            "CREATE INDEX IF NOT EXISTS jfast_schedule_ticks_fire_idx ON jfast_schedule_ticks (fire_at)",
        )
