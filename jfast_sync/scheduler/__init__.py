"""Turns due ticks into jobs: one loop in every process that schedules, without a leader.

Whoever claims a tick in the shared store enqueues its job; everybody else finds it claimed.
"""

from __future__ import annotations

from jfast_sync.scheduler.scheduler import Scheduler
from jfast_sync.scheduler.tick_job import tick_job

__all__ = ["Scheduler", "tick_job"]
