"""``jfast-sync tasks``: what this project can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import json_option, project_options
from jfast_sync_cli.project import open_app
from jfast_sync_cli.show import print_json, print_table

if TYPE_CHECKING:
    from jfast_sync.tasks.spec import Task

__all__ = ["tasks"]


@click.command()
@json_option
@project_options
@click.pass_obj
def tasks(invocation: Invocation, as_json: bool) -> None:
    """List the tasks this project declares, and where."""
    with open_app(invocation) as app:
        declared = sorted(app.tasks.declared(), key=lambda task: task.name)
        attempts = app.config.queue.max_attempts
        if as_json:
            print_json([_as_json(task, attempts) for task in declared])
        elif declared:
            rows = (
                (task.name, task.queue or "default", task.max_attempts or attempts, _options(task), task.where)
                for task in declared
            )
            print_table(("task", "queue", "attempts", "options", "declared at"), rows)
        else:
            click.echo(
                f"No task is declared: put one in {app.config.folder / 'modules'}/<module>/tasks.py, "
                "or name a module with --import."
            )


def _as_json(task: Task, max_attempts: int) -> dict[str, Any]:
    return {
        "name": task.name,
        "aliases": list(task.aliases),
        "module": task.module,
        "where": task.where,
        "queue": task.queue or "default",
        "priority": task.priority or 0,
        "max_attempts": task.max_attempts or max_attempts,
        "session": task.takes_session,
        "idempotent": task.idempotent_on is not None,
    }


def _options(task: Task) -> str:
    said = {
        "session": task.takes_session,
        "idempotent": task.idempotent_on is not None,
        "interrupt": task.interrupt,
        f"priority {task.priority}": task.priority,
        "also " + ", ".join(task.aliases): task.aliases,
    }
    return ", ".join(text for text, holds in said.items() if holds)
