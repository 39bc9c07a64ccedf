"""``jfast-sync enqueue``: one job, or one for every line of a file."""

from __future__ import annotations

from typing import Any

import click

from jfast_sync_cli.bulk import enqueue_lines
from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import DURATION, INSTANT, json_option, project_options
from jfast_sync_cli.payloads import read_argument
from jfast_sync_cli.project import open_app
from jfast_sync_cli.show import print_json

__all__ = ["enqueue"]


@click.command()
@click.argument("task")
@click.argument("payload", required=False, metavar="[JSON|@FILE|-]")
@click.option("--lines", metavar="FILE|-", help="One job per line: each line is a payload. All are checked first.")
@click.option("--tenant", "tenant_id", metavar="ID", help="Run it as this tenant.")
@click.option("--at", "available_at", type=INSTANT, metavar="TIME", help="Not before: 2026-03-01T08:00:00+01:00.")
@click.option("--delay", type=DURATION, metavar="DURATION", help="Not before this long from now: 90s, 2h, 1d.")
@click.option("--queue", metavar="NAME", help="The named queue. [default: the task's]")
@click.option("--priority", type=click.IntRange(-9, 9), help="-9 to 9, higher first. [default: the task's]")
@click.option(
    "--id", "job_id", metavar="ID", help="The job's id; an id is stored once. With --lines: ID-<line number>."
)
@click.option("--max-attempts", type=click.IntRange(1), help="Starts before it is a dead letter. [default: the task's]")
@click.option("--force", is_flag=True, help="Also a task this project does not declare.")
@json_option
@project_options
@click.pass_obj
def enqueue(
    invocation: Invocation,
    /,
    task: str,
    payload: str | None,
    lines: str | None,
    job_id: str | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Queue a job of TASK and print its id.

    The payload is a JSON object: written out, read from @FILE, or from the standard input with -. Without one it
    is empty.

    \b
    jfast-sync enqueue invoice.send_email '{"invoice_id": 7}' --delay 10m
    jfast-sync enqueue invoice.send_email --lines invoices.jsonl --id import-7
    """
    if lines is not None and payload is not None:
        raise click.UsageError("give one payload or --lines, not both")
    if given["delay"] is not None and given["available_at"] is not None:
        raise click.UsageError("give --delay or --at, not both")
    from jfast_sync_cli.order import order

    with open_app(invocation) as app:
        ordered = order(app, task, given, force=force)
        if lines is not None:
            stored = enqueue_lines(app, ordered, lines, id_prefix=job_id, quiet=as_json)
            if as_json:
                print_json({"task": task, "jobs": stored})
            else:
                click.echo(f"{stored} job{'' if stored == 1 else 's'} enqueued.")
            return
        stored_id = app.queue.enqueue(ordered.job(read_argument(payload), job_id))
        if as_json:
            print_json({"id": stored_id, "task": task})
        else:
            click.echo(stored_id)
