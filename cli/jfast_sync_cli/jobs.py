"""``jfast-sync jobs``: look at single jobs, and decide about dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from jfast_sync_cli import lookup
from jfast_sync_cli.dead import counted, require_ids_or_all, say_all, say_ids
from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Invocation, say_error
from jfast_sync_cli.jobs_show import dead_json, print_dead, print_job, row_json
from jfast_sync_cli.options import SINCE, common_options, json_option, project_options
from jfast_sync_cli.project import open_app
from jfast_sync_cli.show import age, print_json, print_table

if TYPE_CHECKING:
    from jfast_sync.job import DeadJob
    from jfast_sync.ports import DeadFilter, DeadLetters

__all__ = ["jobs"]

F = TypeVar("F", bound=Callable[..., Any])

_PAGE: Final = 10_000  # RabbitMQ reads all dead letters for every page

_NOUN: Final = "dead letter"
_NONE: Final = "No dead letters match."


@click.group()
@common_options
def jobs() -> None:
    """List, show, replay, cancel and discard jobs."""


def _filters(command: F) -> F:
    command = click.option("--tenant", metavar="ID", help="Only of this tenant.")(command)
    return click.option("--task", metavar="NAME", help="Only of this task.")(command)


def _since(command: F) -> F:
    return click.option(
        "--since", type=SINCE, metavar="WHEN", help="Only what died since then: 2h (ago), or 2026-03-01T08:00:00Z."
    )(command)


def _limit(command: F) -> F:
    return click.option(
        "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Show at most this many."
    )(command)


@jobs.command("list")
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "running", "dead", "done"]),
    help="Only in this state; done is kept only where keep_done is set.",
)
@_filters
@click.option("--queue", metavar="NAME", help="Only of this named queue.")
@_limit
@json_option
@project_options
@click.pass_obj
def list_jobs(
    invocation: Invocation,
    state: str | None,
    task: str | None,
    tenant: str | None,
    queue: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs: running, then ready, delayed and dead ones."""
    with open_app(invocation) as app:
        found = lookup.rows(app.queue, state=state, task=task, queue=queue, tenant_id=tenant, limit=limit)
        if as_json:
            print_json([row_json(row) for row in found])
        elif not found:
            click.echo("No jobs.")
        else:
            headers = ("id", "state", "task", "queue", "priority", "attempts", "tenant", "due", "created")
            cells = (
                (
                    row.job.id,
                    row.state,
                    row.job.task,
                    row.job.queue,
                    row.job.priority,
                    f"{row.job.attempts}/{row.job.max_attempts}",
                    row.job.tenant_id,
                    age(row.job.available_at) if row.state in ("ready", "delayed") else "",
                    age(row.job.created_at),
                )
                for row in found
            )
            print_table(headers, cells)
            if len(found) == limit:
                click.echo(f"The first {limit}; --limit shows more.", err=True)


@jobs.command()
@click.argument("job_id", metavar="ID")
@json_option
@project_options
@click.pass_obj
def show(invocation: Invocation, job_id: str, as_json: bool) -> None:
    """Show one job: its state, payload, origin and error."""
    with open_app(invocation) as app:
        row, dead = lookup.find(app.queue, job_id)
        if as_json:
            print_json(row_json(row, full=True) | ({"traceback": dead.traceback} if dead is not None else {}))
        else:
            print_job(row, dead)


@jobs.command()
@_filters
@_since
@_limit
@json_option
@project_options
@click.pass_obj
def dead(
    invocation: Invocation, task: str | None, tenant: str | None, since: datetime | None, limit: int, as_json: bool
) -> None:
    """List dead letters, newest first, each with its error."""
    with open_app(invocation) as app:
        found = app.queue.dead_letters.dead(_where(task, tenant, since), limit=limit)
        if as_json:
            print_json([dead_json(letter) for letter in found])
        elif not found:
            click.echo("No dead letters.")
        else:
            for letter in found:
                print_dead(letter)
            if len(found) == limit:
                click.echo(f"The first {limit}; --limit shows more.", err=True)


@jobs.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every dead letter that the filters leave.")
@_filters
@_since
@json_option
@project_options
@click.pass_context
def retry(
    ctx: click.Context,
    ids: tuple[str, ...],
    every: bool,
    task: str | None,
    tenant: str | None,
    since: datetime | None,
    as_json: bool,
) -> None:
    """Put dead letters back into the queue with their attempts at zero."""
    require_ids_or_all(ids, every, (task, tenant, since))
    with open_app(ctx.obj) as app:
        letters = app.queue.dead_letters
        if every:
            count = letters.revive_where(_where(task, tenant, since))
            say_all(count, _NOUN, "retried", as_json, none=_NONE)
            return
        revived = letters.revive(list(dict.fromkeys(ids)))
    say_ids(ctx, ids, revived, _NOUN, "retried", as_json)


@jobs.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every dead letter that the filters leave.")
@_filters
@_since
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@project_options
@click.pass_context
def discard(
    ctx: click.Context,
    ids: tuple[str, ...],
    every: bool,
    task: str | None,
    tenant: str | None,
    since: datetime | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove dead letters for good; asks first."""
    require_ids_or_all(ids, every, (task, tenant, since))
    where = _where(task, tenant, since)
    with open_app(ctx.obj) as app:
        letters = app.queue.dead_letters
        chosen = [letter.job.id for letter in _pages(letters, where)] if every else list(dict.fromkeys(ids))
        if chosen and not yes and not click.confirm(f"Remove {counted(len(chosen), _NOUN)} for good?", err=True):
            click.echo("Nothing was discarded.", err=True)
            ctx.exit(Exit.PROBLEMS)
        discarded: list[str] = []
        for start in range(0, len(chosen), _PAGE):
            discarded += letters.discard(chosen[start : start + _PAGE])
    if every:
        say_all(len(discarded), _NOUN, "discarded", as_json, none=_NONE)
    else:
        say_ids(ctx, ids, discarded, _NOUN, "discarded", as_json)


@jobs.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
@project_options
@click.pass_context
def cancel(ctx: click.Context, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove jobs that wait; tell running ones to stop: unless they succeed all the same, they become dead letters."""
    from jfast_sync.ports import Cancelled

    said = {
        Cancelled.REMOVED: "removed",
        Cancelled.TOLD: "is running; it is told to stop, and is not tried again",
        Cancelled.UNKNOWN: "no job with this id waits or runs",
        Cancelled.DEAD: "is a dead letter; see: jfast-sync jobs discard",
    }
    with open_app(ctx.obj) as app:
        queue = app.queue.inspect
        answers = {job_id: queue.cancel(job_id) for job_id in dict.fromkeys(ids)}
    if as_json:
        print_json({job_id: answer.value for job_id, answer in answers.items()})
    refused = False
    for job_id, answer in answers.items():
        failed = answer in (Cancelled.UNKNOWN, Cancelled.DEAD)
        refused = refused or failed
        if failed:
            say_error(f"{job_id}: {said[answer]}")
        elif not as_json:
            click.echo(f"{job_id}: {said[answer]}")
    if refused:
        ctx.exit(Exit.PROBLEMS)


def _where(task: str | None, tenant: str | None, since: datetime | None) -> DeadFilter:
    from jfast_sync.ports import DeadFilter

    return DeadFilter(task=task, tenant_id=tenant, since=since)


def _pages(letters: DeadLetters, where: DeadFilter) -> Iterator[DeadJob]:
    after: str | None = None
    while page := letters.dead(where, limit=_PAGE, after=after):
        yield from page
        after = page[-1].job.id
