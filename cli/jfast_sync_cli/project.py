"""Opening the project a command works for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from jfast_sync_cli.frame import Invocation

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.config import Config
    from jfast_sync.source import Overrides
    from jfast_sync.sql.engine import Database

__all__ = ["database_of", "open_app", "read_config"]


@contextmanager
def open_app(
    invocation: Invocation, *, overrides: Overrides | None = None, threads: int | None = None
) -> Iterator[JFast]:
    """Build the app, say its configuration's warnings on stderr, and close it after the block.

    Args:
        invocation: where the project is.
        overrides: values over file and environment, by table.
        threads: how many worker threads will hold sessions.

    Raises:
        ConfigError: the configuration, a tasks.py or ``--app`` is wrong.
    """
    from jfast_sync.app import load

    app = load(
        invocation.app,
        config_path=invocation.config,
        imports=tuple(invocation.imports),
        overrides=overrides,
        threads=threads,
    )
    with app:
        warn(app.config)
        yield app


def read_config(invocation: Invocation) -> Config:
    """Read the configuration alone: no task is imported, no server is asked."""
    from jfast_sync.config import load_config

    config = load_config(invocation.config)
    warn(config)
    return config


def database_of(app: JFast) -> Database:
    """Return the app's database.

    Raises:
        ConfigError: none is configured.
    """
    from jfast_sync.errors import ConfigError

    if app.database is None:
        raise ConfigError('no database is configured; add "database" to [plugins] enabled')
    return app.database


def warn(config: Config) -> None:
    """Say a configuration's warnings on stderr."""
    for warning in config.warnings:
        click.echo(f"Warning: {warning}", err=True)
