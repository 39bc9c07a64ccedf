"""Apps for one test: of their own, without a thread, gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from jfast_sync import context
from jfast_sync.config import Config, load_config
from jfast_sync.core import JFast
from jfast_sync.ports import Clock
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.source import Overrides
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.discovery import discover

__all__ = ["memory_app", "sqlite_app"]


@contextmanager
def memory_app(
    project: str | Path | None = None, *, clock: Clock | None = None, overrides: Overrides | None = None
) -> Iterator[JFast]:
    """Open an app whose jobs live in memory and that has no database; it is the current app inside the block.

    For tasks that take no ``TaskSession`` and have no ``idempotent_on``; others need :func:`sqlite_app`.

    Args:
        project: a ``jfast.toml`` or its folder, whose settings and modules are read; the current folder's unless given.
            Environment variables are not read.
        clock: decides when jobs are due; the machine's unless given.
        overrides: values over the file's, by table.

    Raises:
        ConfigError: a setting is wrong, or a declared task needs a database.
    """
    config = _config(project, overrides, {"queue": {"backend": "memory"}, "plugins": {"enabled": ["queue"]}})
    queue = MemoryQueue(
        visibility_timeout=config.queue.visibility_timeout, keep_done=config.queue.keep_done, clock=clock
    )
    discover(config.folder, config.queue.imports)
    yield from _opened(JFast(config, queue=queue))


@contextmanager
def sqlite_app(
    project: str | Path | None = None, *, clock: Clock | None = None, overrides: Overrides | None = None
) -> Iterator[JFast]:
    """Open an app on a SQLite file of its own, removed afterwards; it is the current app inside the block.

    Sessions, idempotency keys and jobs share the file, as they share the database in production. Arguments and errors
    are those of :func:`memory_app`.
    """
    with TemporaryDirectory(prefix="jfast-test-") as folder:
        dsn = f"sqlite:///{Path(folder, 'test.db').as_posix()}"
        forced: dict[str, dict[str, object]] = {
            "queue": {"backend": "sqlite"},
            "database": {"dsn": dsn, "rls": False, "pgbouncer": False},
        }
        config = _config(project, overrides, forced)
        database = Database(dsn)
        queue = SqlQueue(
            database,
            name=config.queue.name,
            visibility_timeout=config.queue.visibility_timeout,
            keep_done=config.queue.keep_done,
            clock=clock,
        )
        discover(config.folder, config.queue.imports)
        yield from _opened(JFast(config, engine=database.engine, queue=queue))


def _opened(app: JFast) -> Iterator[JFast]:
    with app, context.bind_app(app):
        yield app


def _config(project: str | Path | None, given: Overrides | None, forced: Mapping[str, Mapping[str, object]]) -> Config:
    local: Mapping[str, Mapping[str, object]] = {
        "app": {"env": "local"},
        "queue": {"claim": "all", "scheduler_store": "auto"},
    }
    merged: dict[str, dict[str, object]] = {}
    for layer in (local, given or {}, forced):
        for table, values in layer.items():
            merged.setdefault(table, {}).update(values)
    return load_config(project, environ={}, overrides=merged)
