"""Background jobs, a transactional outbox, schedules and events for synchronous Python."""

from __future__ import annotations

from jfast_sync.app import connect
from jfast_sync.context import current_job, current_request_id, current_tenant_id, get_context
from jfast_sync.core import JFast
from jfast_sync.errors import JFastError
from jfast_sync.job import Job

__all__ = [
    "JFast",
    "JFastError",
    "Job",
    "connect",
    "current_job",
    "current_request_id",
    "current_tenant_id",
    "get_context",
]
