"""How jobs and dead letters are printed, for people and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from jfast_sync_cli.show import age, indented, iso, plain, seconds_text

if TYPE_CHECKING:
    from jfast_sync.job import DeadJob
    from jfast_sync.ports import JobRow

__all__ = ["dead_json", "print_dead", "print_job", "row_json"]


def row_json(row: JobRow, *, full: bool = False) -> dict[str, Any]:
    """Return a job as ``jobs list`` gives it; ``full`` adds what only ``jobs show`` gives."""
    job = row.job
    shown: dict[str, Any] = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": row.state,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "tenant_id": job.tenant_id,
        "available_at": iso(job.available_at),
        "created_at": iso(job.created_at),
        "error": job.error,
    }
    if full:
        shown |= {
            "payload": job.payload,
            "request_id": job.request_id,
            "trace": dict(job.trace) if job.trace is not None else None,
            "worker": row.worker,
            "finished_at": iso(row.finished_at),
            "ran_seconds": row.ran_seconds,
        }
    return shown


def dead_json(letter: DeadJob) -> dict[str, Any]:
    """Return a dead letter as ``jobs dead --json`` gives it."""
    job = letter.job
    return {
        "id": job.id,
        "task": job.task,
        "payload": job.payload,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "tenant_id": job.tenant_id,
        "error": job.error,
        "created_at": iso(job.created_at),
    }


def print_dead(letter: DeadJob) -> None:
    """Print one dead letter: a line, and its error indented below."""
    job = letter.job
    tenant = f"  tenant {plain(job.tenant_id)}" if job.tenant_id is not None else ""
    click.echo(f"{job.id}  {job.task}  {job.attempts}/{job.max_attempts}{tenant}  {age(letter.died_at)}")
    click.echo(indented(job.error or "no error was recorded"))


def print_job(row: JobRow, dead: DeadJob | None) -> None:
    """Print everything known of one job."""
    job = row.job
    facts = {
        "id": job.id,
        "task": job.task,
        "state": _state(row, dead),
        "attempts": f"{job.attempts} of {job.max_attempts}",
        "queue": job.queue,
        "priority": job.priority,
        "due": _moment(job.available_at, row.state in ("ready", "delayed")),
        "created": _moment(job.created_at, True),
        "tenant": job.tenant_id,
        "request": job.request_id,
        "worker": row.worker,
    }
    for name, value in facts.items():
        if value not in (None, ""):
            click.echo(f"{name + ':':<10} {plain(str(value))}")
    click.echo("payload:")
    click.echo(indented(json.dumps(job.payload, indent=2, ensure_ascii=False)))
    if job.error:
        click.echo("error:")
        click.echo(indented(job.error))
    if dead is not None and dead.traceback:
        click.echo("traceback:")
        click.echo(indented(dead.traceback))
    if dead is not None and dead.raw is not None:
        click.echo("as it was stored:")
        click.echo(indented(dead.raw.decode(errors="replace")))


def _state(row: JobRow, dead: DeadJob | None) -> str:
    if row.state == "done":
        ran = f", ran {seconds_text(row.ran_seconds)}" if row.ran_seconds is not None else ""
        return f"done at {iso(row.finished_at)}{ran}"
    return f"dead, {age(dead.died_at)}" if dead is not None else row.state


def _moment(moment: Any, wanted: bool) -> str:
    return f"{iso(moment)} ({age(moment)})" if wanted and moment is not None else ""
