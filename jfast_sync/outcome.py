"""How an attempt ended, as a value; deciding it is pure, writing it happens in one place.

:func:`decide` turns what a handler raised into an :data:`Outcome`. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from jfast_sync import control
from jfast_sync.backoff import backoff
from jfast_sync.job import Lease
from jfast_sync.redact import error_text, traceback_text

__all__ = ["CANCELLED", "Bury", "Done", "Outcome", "Policy", "Release", "Retry", "Settlement", "decide"]

#: What the error of a job begins with that was running when somebody cancelled it, and did not succeed.
CANCELLED: Final = "Cancelled while running"


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned: the job goes (or is kept as finished, where ``keep_done`` is set)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again ``delay`` seconds after the backend's clock; ``refund`` gives the attempt back (a snooze or a wait).

    ``until`` (UTC) replaces ``delay``. ``snooze`` starts or continues the job's snoozing age.
    """

    delay: float = 0.0
    until: datetime | None = None
    error: str | None = None
    traceback: str | None = None
    refund: bool = False
    snooze: bool = False


@dataclass(frozen=True, slots=True)
class Bury:
    """Make it a dead letter with ``error``."""

    error: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Put it back at once, the attempt refunded: it was not started, or a shutdown interrupted it."""


Outcome = Done | Retry | Bury | Release


@dataclass(frozen=True, slots=True)
class Settlement:
    """One lease and how it ended: what a queue writes, only where the lease's token is still current."""

    lease: Lease
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What decides between retry and dead letter: the task's options over the configuration's.

    ``backoff_base`` and ``backoff_cap`` are seconds. ``retry_on`` empty means every exception;
    ``give_up_on`` wins over it. ``backoff``, where set, gives the seconds after attempt n instead of base and cap;
    it must not raise.
    """

    backoff_base: float = 2.0
    backoff_cap: float = 300.0
    backoff_jitter: float = 0.0
    backoff: Callable[[int], float] | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    snooze_max_age: timedelta = field(default=timedelta(days=7))

    def delay_after(self, attempt: int) -> float:
        """Return the seconds to wait after attempt ``attempt`` (from 1) has failed."""
        if self.backoff is not None:
            return self.backoff(attempt)
        return backoff(attempt, base=self.backoff_base, cap=self.backoff_cap, jitter=self.backoff_jitter)


_ALWAYS: Final = Policy()


def decide(lease: Lease, error: BaseException | None, policy: Policy = _ALWAYS) -> Outcome:
    """Say how the attempt ends: None is success, anything raised is a retry or a dead letter.

    Args:
        lease: the attempt; its job's ``attempts`` counts this start.
        error: what the handler raised, or None.
        policy: the task's options over the configuration's.
    """
    match error:
        case None:
            return Done()
        case control.Cancel():
            return Bury(error_text(error))
        case control.Snooze():
            return _snooze(lease, error, policy)
        case _:
            return _failed(lease, error, policy)


def _failed(lease: Lease, error: BaseException, policy: Policy) -> Outcome:
    text, trace = error_text(error), traceback_text(error)
    asked = isinstance(error, control.Retry)
    unwanted = isinstance(error, policy.give_up_on) or bool(policy.retry_on and not isinstance(error, policy.retry_on))
    if lease.job.attempts >= lease.max_attempts or (unwanted and not asked):
        return Bury(text, trace)
    delay = error.delay if isinstance(error, control.Retry) else None
    if delay is None:
        delay = policy.delay_after(lease.job.attempts)
    return Retry(delay, error=text, traceback=trace)


def _snooze(lease: Lease, error: control.Snooze, policy: Policy) -> Outcome:
    since = lease.snoozed_since or lease.claimed_at
    age = lease.claimed_at - since
    if age >= policy.snooze_max_age:
        return Bury(f"Snooze: still snoozing after {policy.snooze_max_age}, the longest allowed")
    return Retry(error.delay or 0.0, until=error.until, error=error_text(error), refund=True, snooze=True)
