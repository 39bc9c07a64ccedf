"""What the worker's threads share: the leases it holds, the attempts that run, and how many ended how."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jfast_sync.job import Lease
from jfast_sync.worker.attempt import Attempt

__all__ = ["Counts", "State"]


@dataclass(slots=True)
class Counts:
    """What became of the jobs this worker took, since it started.

    ``done`` includes ``skipped`` (duplicates by idempotency key). ``failed`` counts attempts, those that ended as
    ``dead`` letters included; ``retried`` those that will be tried again, snoozes included. ``lost``: another worker
    had taken the job. ``abandoned``: threads that did not react to their timeout.
    """

    started: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    abandoned: int = 0

    def copy(self) -> Counts:
        return replace(self)


@dataclass(slots=True)
class State:
    """By token. Single operations on a dict are atomic; whoever iterates copies first.

    ``held`` has every lease from the claim until its outcome is written, ``running`` the attempts a thread is in.
    """

    held: dict[str, Lease] = field(default_factory=dict)
    running: dict[str, Attempt] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

    def leases(self) -> list[Lease]:
        return list(self.held.copy().values())

    def attempts(self) -> list[Attempt]:
        return list(self.running.copy().values())
