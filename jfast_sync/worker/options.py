"""How one worker runs: threads, grace, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jfast_sync.errors import ConfigError

__all__ = ["WorkerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker is told at its start. Every duration is in seconds.

    Args:
        threads: jobs that run side by side.
        grace: how long running jobs may go on after a stop was asked for; the rest is released, attempts refunded.
        queues: only these named queues; None takes all.
        drain: end when the queue is empty: nothing ready or running, and nothing delayed that is due within
            ``drain_horizon``. Jobs delayed for longer are left for another run.
        max_jobs: end after this many starts, each one counted; None goes on.
        job_timeout: for tasks without a timeout of their own; 0 is none.
        visibility_timeout: the queue's lease; renewed at a third of it.
        claim: "registered" takes only tasks this process knows, "all" every task of its queues.
        patience: how long a job that was told to stop has to react before its thread is given up.
        drain_horizon: see ``drain``; the longest usual backoff.
        max_abandoned: with more given-up threads alive than this the worker ends, to be restarted by whoever
            supervises it; None is half the threads, at least 2.

    Raises:
        ConfigError: a value is out of bounds.
    """

    threads: int = 8
    grace: float = 25.0
    queues: frozenset[str] | None = None
    drain: bool = False
    max_jobs: int | None = None
    job_timeout: float = 600.0
    visibility_timeout: float = 60.0
    claim: Literal["all", "registered"] = "all"
    patience: float = 1.0
    drain_horizon: float = 300.0
    max_abandoned: int | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads must be 1 or more, got {self.threads}")
        if self.max_jobs is not None and self.max_jobs < 1:
            raise ConfigError(f"max_jobs must be 1 or more, got {self.max_jobs}; leave it out to go on")
        if self.visibility_timeout <= 0:
            raise ConfigError(f"visibility_timeout must be more than 0 seconds, got {self.visibility_timeout:g}")
        for name in ("grace", "job_timeout", "patience", "drain_horizon"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be zero or more seconds, got {getattr(self, name)!r}")
        if self.claim not in ("all", "registered"):
            raise ConfigError(f'claim must be "all" or "registered", got {self.claim!r}')

    @property
    def abandoned_limit(self) -> int:
        """How many given-up threads may be alive before the worker ends."""
        return max(2, self.threads // 2) if self.max_abandoned is None else self.max_abandoned
