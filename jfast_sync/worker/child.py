"""A job that runs alone in a process of its own, because its earlier starts took their workers' leases with them.

Only a child that dies makes the job a dead letter: the lapses before were a suspicion, and may have been a
neighbour's fault or an outage.
"""

from __future__ import annotations

from typing import Protocol

from jfast_sync.worker.attempt import Attempt, Ended

__all__ = ["ChildLauncher"]


class ChildLauncher(Protocol):
    """Starts such processes."""

    def run(self, attempt: Attempt) -> Ended:
        """Run the attempt's job in a new process and wait for its end."""
        ...
