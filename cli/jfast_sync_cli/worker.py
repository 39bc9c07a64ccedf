"""``jfast-sync worker``: run jobs."""

from __future__ import annotations

from typing import Any

import click

from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import DURATION, project_options

__all__ = ["worker"]


@click.command()
@click.option("--threads", type=click.IntRange(1, 1000), default=8, show_default=True, help="Jobs side by side.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--grace", type=DURATION, default="25s", show_default=True, help="What running jobs get at a stop.")
@click.option("--queues", metavar="NAME,...", help="Only these named queues. [default: all]")
@click.option("--drain", is_flag=True, help="End when the queue is empty.")
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="End after this many jobs.")
@click.option("--probe-port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve /ready on this port.")
@project_options
@click.pass_obj
def worker(invocation: Invocation, /, **options: Any) -> None:
    """Run jobs until told to stop."""
    raise click.ClickException("not yet")
