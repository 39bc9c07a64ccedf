"""``jfast-sync db``: the tables this library keeps in the database."""

from __future__ import annotations

import click

from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import common_options, json_option, project_options
from jfast_sync_cli.project import database_of, open_app
from jfast_sync_cli.show import print_json

__all__ = ["db"]


@click.group()
@common_options
def db() -> None:
    """Create, upgrade and inspect the database's tables."""
