"""A task as it was declared: the handler, how to call it, and its options."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.job import RunningJob
from jfast_sync.outcome import Policy
from jfast_sync.payload import decode_into
from jfast_sync.redact import error_text
from jfast_sync.schedules import Cron, Every
from jfast_sync.tasks.injection import Injection, Kind
from jfast_sync.tasks.keys import typed_key

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["Backoff", "ScheduleDeclaration", "Task"]

log = logging.getLogger(__name__)

#: Seconds after attempt n, as a function of n; or (base, cap) of the usual doubling; or always the same seconds.
Backoff = Callable[[int], float] | tuple[float, float] | float

_LONGEST_BACKOFF: Final = timedelta(days=366).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDeclaration:
    """When a task recurs, as written down.

    ``name`` identifies the schedule's ticks in the shared store; ``where`` is the ``file:line`` that declares it.
    """

    name: str
    task: str
    every: timedelta | None = None
    cron: str | None = None
    timezone: str | None = None
    catch_up: bool = True
    payload: Mapping[str, Any] = field(default_factory=dict)
    jitter: timedelta | None = None
    max_attempts: int | None = None
    where: str = ""

    def recurrence(self) -> Cron | Every:
        """Return when it ticks.

        Raises:
            ScheduleError: the expression, the zone or the interval is refused.
        """
        if self.every is not None:
            return Every(self.every)
        return Cron(self.cron or "", self.timezone or "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One declared task. None in an option means: what the configuration says.

    ``subscribes_to`` is the type of the events it reacts to, None for a task that is no subscriber. ``timeout`` is
    seconds (0: none). ``where`` is the ``file:line`` of the declaration; ``module`` the folder under
    ``modules/`` that owns it, else the Python module's name. ``interrupt`` lets a timeout raise inside the handler.
    """

    name: str
    function: Callable[..., Any]
    injection: Injection
    where: str
    module: str
    aliases: tuple[str, ...] = ()
    max_attempts: int | None = None
    timeout: float | None = None
    backoff: Backoff | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    queue: str | None = None
    priority: int | None = None
    interrupt: bool = False
    idempotent_on: Callable[[Any], Any] | None = None
    schedule: ScheduleDeclaration | None = None
    subscribes_to: str | None = None
    execution: object = field(default=None, repr=False, compare=False)  # tells one run of its module from another

    @property
    def takes_session(self) -> bool:
        return self.injection.takes(Kind.SESSION)

    @property
    def takes_context(self) -> bool:
        return self.injection.takes(Kind.CONTEXT)

    @property
    def needs_database(self) -> bool:
        """Whether running it opens a transaction: it takes a session, or claims an idempotency key."""
        return self.takes_session or self.idempotent_on is not None

    @property
    def payload_type(self) -> Any:
        """The dataclass or TypedDict the payload is checked against, or None."""
        return self.injection.payload_type

    def call(self, job: RunningJob, session: Session | None = None, context: object | None = None) -> None:
        """Run the handler with what its parameters ask for; whatever it raises comes through.

        Raises:
            PayloadError: the payload does not fit the handler's dataclass or TypedDict.
            TypeError: the handler returned a coroutine or generator, whose body never ran.
        """
        have = {Kind.SESSION: session, Kind.CONTEXT: context, Kind.RUNNING_JOB: job, Kind.JOB: job.job}
        have[Kind.PAYLOAD] = self._payload(job.job.payload)
        injection = self.injection
        result = self.function(
            *[have[kind] for kind in injection.positional], **{name: have[kind] for name, kind in injection.keywords}
        )
        if result is not None:
            _refuse_unstarted(result, self.name)

    def idempotency_key(self, payload: Mapping[str, Any]) -> str | None:
        """Return the key to claim in the inbox before the handler runs; None where there is none to claim.

        Typed (1 is not "1"), not scoped by tenant, not shortened. What ``idempotent_on`` raises comes through: the
        job fails with it.

        Raises:
            ValueError: the key is empty.
            TypeError: the key is not a string, number, UUID, date, or a tuple of these.
        """
        if self.idempotent_on is None:
            return None
        key = self.idempotent_on(self._payload(payload))
        return key if self.subscribes_to is not None else typed_key(key)  # an event's id is claimed as it is

    def policy(self, defaults: Policy) -> Policy:
        """Return ``defaults`` with this task's ``backoff``, ``retry_on`` and ``give_up_on`` in their place."""
        chosen = replace(defaults, retry_on=self.retry_on, give_up_on=self.give_up_on)
        match self.backoff:
            case None:
                return chosen
            case (base, cap):
                return replace(chosen, backoff_base=base, backoff_cap=cap)
            case float() | int() as seconds:
                return replace(chosen, backoff_base=seconds, backoff_cap=seconds, backoff_jitter=0.0)
            case function:
                return replace(chosen, backoff=lambda attempt: self._own_backoff(function, attempt, defaults))

    def _payload(self, payload: Any) -> Any:
        return payload if self.payload_type is None else decode_into(self.payload_type, payload)

    def _own_backoff(self, function: Callable[[int], float], attempt: int, defaults: Policy) -> float:
        """Ask the task's own function; one that fails must not keep the job from being retried."""
        try:
            seconds = float(function(attempt))
        except Exception as exc:
            log.warning("backoff of task %s failed: %s; the usual delay is used", self.name, error_text(exc))
            return defaults.delay_after(attempt)
        if not 0 <= seconds < math.inf:
            log.warning("backoff of task %s gave %r seconds; the usual delay is used", self.name, seconds)
            return defaults.delay_after(attempt)
        return min(seconds, _LONGEST_BACKOFF)


def _refuse_unstarted(result: object, name: str) -> None:
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
        return
    raise TypeError(
        f"the handler of {name!r} returned a {type(result).__name__}, so its body did not run; handlers are plain "
        "functions that do their work before they return"
    )
