"""What all jobs of one ``enqueue`` have in common, from the task's declaration and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jfast_sync.job import Job
from jfast_sync.payload import check_against
from jfast_sync_cli.frame import nearest

if TYPE_CHECKING:
    from jfast_sync.app import JFast

__all__ = ["Order", "order"]


@dataclass(frozen=True, slots=True)
class Order:
    """The fields that are the same in every job, and the type its payload must fit (None: any)."""

    fields: Mapping[str, Any]
    payload_type: Any

    def job(self, payload: dict[str, Any], job_id: str | None) -> Job:
        """Build one job.

        Raises:
            PayloadError: the payload does not fit the task, or a field is out of bounds.
        """
        checked = payload if self.payload_type is None else check_against(self.payload_type, payload)
        named: dict[str, Any] = {} if job_id is None else {"id": job_id}
        return Job(**self.fields, **named, payload=checked)


def order(app: JFast, task: str, given: Mapping[str, Any], *, force: bool) -> Order:
    """Put what was given over what the task declares.

    Args:
        app: the app whose tasks are known.
        task: the task's name.
        given: a job's fields; None means not given.
        force: take a task this project does not declare, for another service.

    Raises:
        click.ClickException: the task is unknown, or the backend would forget the job.
    """
    if app.queue.backend.backend == "memory":
        raise click.ClickException(
            '[plugin.queue] backend = "memory" keeps jobs inside the process that runs them: a job of this command '
            "would be gone when it ends"
        )
    known = app.tasks.find(task)
    if known is None and not force:
        names = app.tasks.names()
        hint = nearest(task, names) if names else "; this project declares no task"
        raise click.ClickException(
            f"there is no task {task!r} here{hint}; to enqueue it for another service, add --force"
        )
    own = {} if known is None else {"queue": known.queue, "priority": known.priority}
    fields = own | {name: value for name, value in given.items() if value is not None}
    return Order(
        {"task": task} | {name: value for name, value in fields.items() if value is not None},
        known.payload_type if known is not None else None,
    )
