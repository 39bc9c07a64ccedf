"""Tasks: what jobs run.

Declare them in ``modules/<module>/tasks.py``::

    from jfast_sync.tasks import TaskSession, task

    @task("invoice.send_email", idempotent_on=lambda payload: payload["invoice_id"])
    def send_email(payload: dict, session: TaskSession) -> None: ...
"""

from __future__ import annotations

from jfast_sync.control import Cancel, Retry, Snooze
from jfast_sync.tasks.declare import task
from jfast_sync.tasks.injected import TaskContext, TaskSession

__all__ = ["Cancel", "Retry", "Snooze", "TaskContext", "TaskSession", "task"]
