"""``jfast-sync config``: every value and where it comes from."""

from __future__ import annotations

from itertools import groupby

import click

from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import common_options, json_option
from jfast_sync_cli.project import read_config
from jfast_sync_cli.show import print_json, print_table

__all__ = ["config"]


@click.group()
@common_options
def config() -> None:
    """Show the configuration and where each value comes from."""


@config.command()
@click.option("--changed", is_flag=True, help="Only what differs from the defaults.")
@json_option
@common_options
@click.pass_obj
def show(invocation: Invocation, changed: bool, as_json: bool) -> None:
    """Show every key with its value, its default and where the value comes from. Secrets are masked."""
    loaded = read_config(invocation)
    rows = [row for row in loaded.describe() if not changed or row.origin != "default"]
    if as_json:
        entries = [
            {
                "table": row.table,
                "key": row.key,
                "value": row.value,
                "default": row.default,
                "origin": row.origin,
                "environment": row.environment,
            }
            for row in rows
        ]
        print_json({"file": str(loaded.source) if loaded.source else None, "keys": entries})
        return
    click.echo(f"File: {loaded.source or 'none (every key has a default)'}")
    for table, of_table in groupby(rows, key=lambda row: row.table):
        click.echo(f"\n[{table}]")
        cells = ((row.key, _text(row.value), row.origin, _text(row.default), row.environment) for row in of_table)
        print_table(("key", "value", "from", "default", "environment"), cells)


def _text(value: object) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value) or '""'
