"""Opening the project a command works for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING

import click

from jfast_sync_cli.frame import Invocation

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.config import Config
    from jfast_sync.source import Overrides
    from jfast_sync.sql.engine import Database

__all__ = ["open_app", "open_database", "read_config", "warn"]


@contextmanager
def open_app(
    invocation: Invocation,
    *,
    overrides: Overrides | None = None,
    threads: int | None = None,
    warnings: bool = True,
    prints: bool = False,
) -> Iterator[JFast]:
    """Build the app, say its configuration's warnings on stderr, and close it after the block.

    Args:
        invocation: where the project is.
        overrides: values over file and environment, by table.
        threads: how many worker threads will hold sessions.
        warnings: False keeps the configuration's warnings to itself.
        prints: what the app prints while it is built goes to stdout; otherwise that is kept for the command's result,
            and prints go to stderr.

    Raises:
        ConfigError: the configuration, a tasks.py or ``--app`` is wrong.
    """
    from jfast_sync.app import load

    with nullcontext() if prints else redirect_stdout(sys.stderr):
        app = load(
            invocation.app,
            config_path=invocation.config,
            imports=tuple(invocation.imports),
            overrides=overrides,
            threads=threads,
        )
    with app:
        if warnings:
            warn(app.config)
        yield app


def read_config(invocation: Invocation, *, warnings: bool = True) -> Config:
    """Read the configuration alone: no task is imported, no server is asked."""
    from jfast_sync.config import load_config

    config = load_config(invocation.config)
    if warnings:
        warn(config)
    return config


@contextmanager
def open_database(invocation: Invocation, *, warnings: bool = True) -> Iterator[tuple[Config, Database]]:
    """Open the primary database alone: a tasks.py that cannot be imported does not keep anybody from migrating.

    With ``--app`` the app is built, because it may bring an engine of its own.

    Raises:
        ConfigError: none is configured.
    """
    if invocation.app is not None:
        with open_app(invocation, warnings=warnings) as app:
            yield app.config, _present(app.database)
        return
    from jfast_sync import adapters

    config = read_config(invocation, warnings=warnings)
    database = _present(adapters.database(config))
    try:
        yield config, database
    finally:
        database.dispose()


def _present(database: Database | None) -> Database:
    from jfast_sync.errors import ConfigError

    if database is None:
        raise ConfigError('no database is configured; add "database" to [plugins] enabled')
    return database


def warn(config: Config) -> None:
    """Say a configuration's warnings on stderr."""
    for warning in config.warnings:
        click.echo(f"Warning: {warning}", err=True)
