"""What ``doctor`` looks at, one small check after the other; each stands on the ones before it."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final, Literal

from jfast_sync import adapters
from jfast_sync.errors import JFastError, UnavailableError
from jfast_sync.redact import error_text, mask_dsn
from jfast_sync.sql import schema, tenants
from jfast_sync_cli import zone_data
from jfast_sync_cli.db import state_of
from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.project import open_app, open_database, read_config

if TYPE_CHECKING:
    from jfast_sync.config import Config
    from jfast_sync.ports import Queue
    from jfast_sync.sql.engine import Database

__all__ = ["Finding", "examine"]

_OLDEST_PYTHON: Final = (3, 11)
_OLDEST_SQLITE: Final = (3, 35)
_PATIENCE: Final = 5.0  # seconds a server may take to answer
_DRIVERS: Final = {  # extra: distribution
    "postgres": "psycopg",
    "redis": "redis",
    "rabbitmq": "pika",
    "kafka": "kafka-python",
    "otel": "opentelemetry-api",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's report; ``fix`` says what to do where ``status`` is not ok."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


def examine(invocation: Invocation) -> Iterator[Finding]:
    """Yield the findings one by one; what cannot be looked at because of an earlier failure is left out."""
    yield from _machine()
    try:
        config = read_config(invocation, warnings=False)
    except JFastError as exc:
        yield Finding(name="config", status="fail", detail=str(exc), fix="correct the value that is named")
        return
    yield _config(config)
    yield from _drivers(config)
    yield from _tasks(invocation)
    try:
        with open_database(invocation, warnings=False) as (_, database):
            yield from _database(config, database)
    except JFastError as exc:
        yield Finding(name="database", status="fail", detail=str(exc), fix="see the message")


def _machine() -> Iterator[Finding]:
    python = sys.version_info[:2] >= _OLDEST_PYTHON
    yield Finding(
        name="python",
        status="ok" if python else "fail",
        detail=f"Python {platform.python_version()}",
        fix="" if python else "install Python 3.11 or newer",
    )
    sqlite = sqlite3.sqlite_version_info >= _OLDEST_SQLITE
    yield Finding(
        name="sqlite",
        status="ok" if sqlite else "fail",
        detail=f"SQLite {sqlite3.sqlite_version}",
        fix="" if sqlite else "use a Python built with SQLite 3.35 or newer",
    )
    yield _zones()


def _zones() -> Finding:
    used, package = zone_data.in_use(), zone_data.of_package()
    if used is None:
        fix = "install the system's tzdata, or pip install tzdata"
        return Finding(name="zones", status="fail", detail="there is no time zone data", fix=fix)
    if package is not None and used.older_than(package):
        fix = 'update the system\'s tzdata, or set PYTHONTZPATH="" so that the package counts'
        return Finding(name="zones", status="warn", detail=f"{used} is older than {package}, and counts", fix=fix)
    return Finding(name="zones", status="ok", detail=f"time zones {used}")


def _config(config: Config) -> Finding:
    source = str(config.source) if config.source is not None else "no jfast.toml: every key has a default"
    detail = f"{source}; env {config.app.env}, queue {config.queue.name} on {config.backend}"
    if config.warnings:
        return Finding(name="config", status="warn", detail=f"{detail}; {'; '.join(config.warnings)}")
    return Finding(name="config", status="ok", detail=detail)


def _drivers(config: Config) -> Iterator[Finding]:
    needed: set[str] = {config.backend_of_database} if config.has("database") else set()
    needed |= (
        {config.backend}
        | ({"redis"} if config.has("cache") else set())
        | ({"kafka"} if config.has("events") else set())
        | ({"otel"} if config.has("telemetry") else set())
    )
    for extra, distribution in _DRIVERS.items():
        version = _version(distribution)
        if version is not None:
            yield Finding(name="driver", status="ok", detail=f"{extra}: {distribution} {version}")
        elif extra in needed:
            fix = f'pip install "jfast-sync[{extra}]"'
            yield Finding(name="driver", status="fail", detail=f"{extra}: {distribution} is not installed", fix=fix)
        else:
            yield Finding(
                name="driver", status="ok", detail=f"{extra}: {distribution} is not installed, and not needed"
            )


def _tasks(invocation: Invocation) -> Iterator[Finding]:
    try:
        with open_app(invocation, warnings=False) as app:
            names = app.tasks.names()
            schedules = app.tasks.schedules()
            off = not app.config.queue.scheduler
    except UnavailableError as exc:
        fix = "see the database below: what builds the app already needs it"
        yield Finding(name="tasks", status="fail", detail=str(exc), fix=fix)
        return
    except JFastError as exc:
        yield Finding(name="tasks", status="fail", detail=str(exc), fix="correct what is named")
        return
    except Exception as exc:
        yield Finding(name="tasks", status="fail", detail=error_text(exc), fix="jfast-sync tasks --debug")
        return
    if not names:
        fix = "put a task into modules/<module>/tasks.py, or name a module in [plugin.queue] imports"
        yield Finding(name="tasks", status="warn", detail="no task is declared", fix=fix)
    else:
        yield Finding(
            name="tasks",
            status="ok",
            detail=f"{len(names)} declared: {', '.join(names[:5])}" + (", ..." if len(names) > 5 else ""),
        )
    if schedules and off:
        detail = f"{len(schedules)} schedules are declared and the scheduler is off"
        yield Finding(name="schedules", status="warn", detail=detail, fix="set [plugin.queue] scheduler = true")


def _database(config: Config, database: Database) -> Iterator[Finding]:
    url = database.engine.url
    shown = mask_dsn(url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True))
    try:
        database.check(timeout=_PATIENCE)
        version = database.transact(lambda connection: connection.dialect.server_version_info) or ()
    except JFastError as exc:
        fix = "start the server, or correct [plugin.database] dsn (JFAST_DB_DSN)"
        yield Finding(name="database", status="fail", detail=f"{shown}: {exc}", fix=fix)
        return
    number = ".".join(map(str, version))
    yield Finding(name="database", status="ok", detail=f"{shown} answers ({database.dialect} {number})")
    behind = [part for part in schema.status(database, config.jobs_table) if not part.current]
    if behind:
        detail = "; ".join(f"{part.component}: {state_of(part)}" for part in behind)
        automatic = config.app.env != "prod" and all(part.version < part.latest for part in behind)
        if any(part.version > part.latest for part in behind):
            fix = "install a newer jfast-sync here: tables are never taken back"
        else:
            fix = "jfast-sync db upgrade" + (" (outside prod it also happens at the first use)" if automatic else "")
        yield Finding(name="schema", status="warn" if automatic else "fail", detail=detail, fix=fix)
        return
    yield Finding(name="schema", status="ok", detail="the tables are current")
    if database.rls:
        yield _tenants(config, database)
    yield from _queue(config, database)


def _tenants(config: Config, database: Database) -> Finding:
    flaw = tenants.flaw(database)
    if not flaw.text:
        return Finding(name="tenants", status="ok", detail="row-level security holds for the role of dsn")
    refused = flaw.error is not None and config.app.env == "prod"
    return Finding(name="tenants", status="fail" if refused else "warn", detail=flaw.text, fix="see the message")


def _queue(config: Config, database: Database) -> Iterator[Finding]:
    backend = adapters.queue(config, database)
    policies: Finding | None = None
    try:
        with closing(backend):
            if backend.backend == "rabbitmq":
                policies = _policies(backend)  # first: it has more time than what the statistics take for it
            stats = backend.stats()
    except JFastError as exc:
        yield Finding(name="queue", status="fail", detail=str(exc), fix="see the message")
        return
    detail = f"{stats.ready} ready, {stats.delayed} delayed, {stats.running} running, {stats.dead} dead"
    if stats.dead:
        yield Finding(
            name="queue", status="warn", detail=detail, fix="jfast-sync jobs dead, then jobs retry or discard"
        )
    else:
        yield Finding(name="queue", status="ok", detail=detail)
    for warning in stats.warnings:
        yield Finding(name="queue", status="warn", detail=warning)
    if policies is not None:
        yield policies


def _policies(backend: Queue) -> Finding:
    from jfast_sync.queues.rabbitmq.queue import RabbitQueue

    assert isinstance(backend, RabbitQueue)
    tried = backend.policies.look(_PATIENCE)
    detail = backend.policies.how_to_look()
    if tried:
        return Finding(name="policies", status="ok", detail=detail)
    return Finding(name="policies", status="warn", detail=f"the trial for policies came to no end. {detail}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
