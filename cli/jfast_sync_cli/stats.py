"""``jfast-sync stats``: how many jobs are where."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import DURATION, json_option, project_options
from jfast_sync_cli.project import open_app
from jfast_sync_cli.show import print_json, print_table, seconds_text

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.ports import Stats

__all__ = ["stats", "stats_json"]


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--every", type=DURATION, default="2s", show_default=True, help="How often, with --watch.")
@json_option
@project_options
@click.pass_obj
def stats(invocation: Invocation, watch: bool, every: timedelta, as_json: bool) -> None:
    """Show how many jobs are ready, delayed, running and dead, and what each task has done so far."""
    pause = max(every.total_seconds(), 0.1)
    with open_app(invocation) as app:
        while True:
            now = app.queue.stats()
            if watch and as_json:
                click.echo(json.dumps({"at": datetime.now(UTC).isoformat(), **stats_json(app, now)}))
            elif as_json:
                print_json(stats_json(app, now))
            elif watch:
                _watched(app, now)
            else:
                _show(app, now)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(pause)


def stats_json(app: JFast, now: Stats) -> dict[str, Any]:
    """Return the figures as ``/queue/stats`` names them, and the counters per task."""
    return {
        "backend": app.queue.backend.backend,
        "tasks": app.tasks.names(),
        "depths": {"ready": now.ready, "delayed": now.delayed, "running": now.running, "dead": now.dead},
        "oldest_ready_seconds": now.oldest_ready,
        "done": dict(now.done_by_task),
        "failed": dict(now.failed_by_task),
        "warnings": list(now.warnings),
    }


def _watched(app: JFast, now: Stats) -> None:
    if sys.stdout.isatty():
        click.clear()
        _show(app, now)
        return
    at = datetime.now(UTC).strftime("%H:%M:%SZ")
    depths = f"ready={now.ready} delayed={now.delayed} running={now.running} dead={now.dead}"
    click.echo(f"{at} {depths} done={sum(now.done_by_task.values())} failed={sum(now.failed_by_task.values())}")


def _show(app: JFast, now: Stats) -> None:
    waits = f"the oldest has waited {seconds_text(now.oldest_ready)}" if now.oldest_ready is not None else ""
    dead = "see: jfast-sync jobs dead" if now.dead else ""
    click.echo(f"Queue {app.config.queue.name} ({app.queue.backend.backend})\n")
    rows = (
        ("ready", now.ready, waits),
        ("delayed", now.delayed, ""),
        ("running", now.running, ""),
        ("dead", now.dead, dead),
    )
    print_table(("state", "jobs", ""), rows)
    counted = sorted({*now.done_by_task, *now.failed_by_task})
    if counted:
        click.echo()
        figures = ((name, now.done_by_task.get(name, 0), now.failed_by_task.get(name, 0)) for name in counted)
        print_table(("task", "done", "failed attempts"), figures)
    for warning in now.warnings:
        click.echo(f"Warning: {warning}", err=True)
