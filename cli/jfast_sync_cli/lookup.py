"""Single jobs for `jobs list` and `jobs show`; where the backend knows dead letters only, those, and that it is so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from jfast_sync.errors import UnsupportedError

if TYPE_CHECKING:
    from jfast_sync.client import QueueClient
    from jfast_sync.job import DeadJob
    from jfast_sync.ports import JobRow

__all__ = ["find", "rows"]

_EVERY_DEAD: Final = 1_000_000


def rows(
    client: QueueClient, *, state: str | None, task: str | None, queue: str | None, tenant_id: str | None, limit: int
) -> list[JobRow]:
    """Return the jobs that match; of a backend that lists no others, the dead ones, which is said on stderr.

    Raises:
        UnsupportedError: the state is one that this backend does not list.
    """
    from jfast_sync.ports import DeadFilter, Inspectable, JobRow

    if isinstance(client.backend, Inspectable):
        return client.inspect.jobs(state=state, task=task, queue=queue, tenant_id=tenant_id, limit=limit)
    letters = client.dead_letters
    if state not in (None, "dead"):
        raise UnsupportedError(f"{_only_dead(client)}: jobs that are {state} cannot be listed")
    click.echo(f"{_only_dead(client)}; the rest is not in this list", err=True)
    where = DeadFilter(task=task, tenant_id=tenant_id)
    found = letters.dead(where, limit=limit if queue is None else _EVERY_DEAD)
    return [JobRow(job=each.job, state="dead") for each in found if queue in (None, each.job.queue)][:limit]


def find(client: QueueClient, job_id: str) -> tuple[JobRow, DeadJob | None]:
    """Return a job, and its dead letter where it is one.

    Raises:
        click.ClickException: there is none.
    """
    from jfast_sync.ports import Inspectable, JobRow

    if isinstance(client.backend, Inspectable):
        row = client.inspect.find(job_id)
        if row is None:
            raise click.ClickException(
                f"there is no job {job_id!r}; finished jobs are kept only where [plugin.queue] keep_done is set"
            )
        return row, client.dead_letters.find_dead(job_id) if row.state == "dead" else None
    letter = client.dead_letters.find_dead(job_id)
    if letter is None:
        raise click.ClickException(f"there is no dead letter {job_id!r}. {_only_dead(client)}")
    return JobRow(job=letter.job, state="dead"), letter


def _only_dead(client: QueueClient) -> str:
    return (
        f"the {client.backend.backend} backend knows dead letters one by one (jfast-sync jobs dead), "
        "and only counts what waits or runs (jfast-sync stats): reading a work queue counts as a delivery of its jobs"
    )
