"""When a task recurs: cron expressions on a zone's wall clock, intervals, and the ticks that are due. Pure."""

from __future__ import annotations

from jfast_sync.schedules.cron import Cron
from jfast_sync.schedules.interval import Every

__all__ = ["Cron", "Every"]
