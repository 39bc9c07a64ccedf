"""The entry point ``jfast-sync``: the list of commands and the options that stand before them."""

from __future__ import annotations

import click

from jfast_sync_cli.frame import Root
from jfast_sync_cli.options import common_options, show_version

__all__ = ["main"]

COMMANDS = {
    "demo": "Run real jobs through a real worker and count what happened.",
    "worker": "Run jobs until told to stop.",
    "enqueue": "Queue a job, or one per line of a file.",
    "stats": "Show how many jobs are waiting, running and dead.",
    "jobs": "List, show, replay, cancel and discard jobs.",
    "schedules": "List schedules, preview their ticks, and run one by hand.",
    "outbox": "Show what waits to be sent; retry and discard what was given up.",
    "tasks": "List the tasks this project declares.",
    "config": "Show the configuration and where each value comes from.",
    "db": "Create, upgrade and inspect the database's tables.",
    "doctor": "Check this project from Python to the server, with a fix for what is wrong.",
    "completion": "Print the completion script for a shell.",
}


@click.command("jfast-sync", cls=Root, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show the version."
)
@common_options
def main() -> None:
    """Background jobs for synchronous Python.

    \b
    Exit codes: 0 done, 1 problems found or input refused, 2 configuration,
    3 a server cannot be reached, 4 migration, 5 contract violation, 6 usage.
    """
