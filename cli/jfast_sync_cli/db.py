"""``jfast-sync db``: the tables this library keeps in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import common_options, json_option, project_options
from jfast_sync_cli.project import open_database
from jfast_sync_cli.show import print_json, print_table

if TYPE_CHECKING:
    from jfast_sync.sql import schema

__all__ = ["db", "state_of"]


@click.group()
@common_options
def db() -> None:
    """Create, upgrade and inspect the database's tables."""


@db.command()
@json_option
@project_options
@click.pass_obj
def upgrade(invocation: Invocation, as_json: bool) -> None:
    """Create or upgrade the tables. Workers may go on working, and several may do this at once."""
    from jfast_sync.sql import schema

    with open_database(invocation) as (config, database):
        applied = schema.upgrade(database, config.jobs_table)
    if as_json:
        print_json({"applied": applied})
    elif applied:
        for title in applied:
            click.echo(f"done: {title}")
    else:
        click.echo("Everything is up to date.")


@db.command()
@json_option
@project_options
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the versions of the tables. Exit code 4 where they are missing, older or newer than this jfast-sync."""
    from jfast_sync.sql import schema

    with open_database(ctx.obj) as (config, database):
        found = schema.status(database, config.jobs_table)
    current = all(part.current for part in found)
    if as_json:
        components = [
            {"component": part.component, "version": part.version, "latest": part.latest, "pending": list(part.pending)}
            for part in found
        ]
        print_json({"current": current, "components": components})
    else:
        states = ((part.component, part.version, part.latest, state_of(part)) for part in found)
        print_table(("component", "version", "latest", "state"), states)
        if any(part.version < part.latest for part in found):
            click.echo("\nRun: jfast-sync db upgrade")
    if not current:
        ctx.exit(Exit.MIGRATION)


def state_of(part: schema.Status) -> str:
    """Say in words where a component stands."""
    if part.current:
        return "current"
    if part.version > part.latest:
        return "newer than this jfast-sync: upgrade jfast-sync"
    return "missing" if part.version == 0 else f"{len(part.pending)} steps behind"
