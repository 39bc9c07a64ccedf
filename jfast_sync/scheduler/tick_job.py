"""The job of a tick."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jfast_sync.job import Job, new_id
from jfast_sync.schedules.ticks import jitter_of, tick_id

if TYPE_CHECKING:
    from jfast_sync.tasks.registry import Registry
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["tick_job"]


def tick_job(schedule: ScheduleDeclaration, tick: datetime, tasks: Registry, *, by_hand: bool = False) -> Job:
    """Return the job of one tick: nobody's tenant, the schedule's payload, and the instant it is for.

    Args:
        schedule: whose tick.
        tick: the instant; ``scheduled_for`` in the payload, in UTC.
        tasks: where the task's queue and priority are declared.
        by_hand: somebody wants it now: a fresh id, so that the tick itself still comes, and no jitter.
    """
    task = tasks.find(schedule.task)
    job_id = new_id() if by_hand else tick_id(schedule.name, tick)
    later = schedule.jitter is not None and not by_hand
    return Job(
        task=schedule.task,
        payload={**schedule.payload, "scheduled_for": tick.astimezone(UTC).isoformat()},
        id=job_id,
        queue=(task.queue if task is not None else None) or "default",
        priority=(task.priority if task is not None else None) or 0,
        max_attempts=schedule.max_attempts,
        available_at=tick + jitter_of(job_id, schedule.jitter) if later and schedule.jitter is not None else None,
        tenant_id=None,
        request_id=None,
        trace=None,
    )
