"""The worker: claims jobs, runs them in threads, writes how they ended, and stops without losing any.

Read in the order a job takes: ``fetcher``, ``runner``, ``execute``, ``transaction``, ``settle``. ``attempt`` holds
the one question that matters, ``worker`` the order of start and stop.
"""

from __future__ import annotations

from jfast_sync.worker.options import WorkerOptions
from jfast_sync.worker.state import Counts
from jfast_sync.worker.supervisor import Supervisor
from jfast_sync.worker.worker import Worker

__all__ = ["Counts", "Supervisor", "Worker", "WorkerOptions"]
