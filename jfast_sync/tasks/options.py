"""The options of a task and of a schedule, checked when they are declared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from jfast_sync.errors import DeclarationError, PayloadError, ScheduleError
from jfast_sync.job import MAX_PRIORITY
from jfast_sync.payload import decode_into, encode
from jfast_sync.tasks.spec import Backoff, ScheduleDeclaration

__all__ = ["check_tick_payload", "exception_types", "schedule_of", "task_name", "task_options"]

_LONGEST_NAME: Final = 255
_LONGEST_QUEUE: Final = 128
_LONGEST_JITTER: Final = timedelta(days=1)
_FORMS_OF_BACKOFF: Final = "seconds, (base, cap) in seconds, or a function of the attempt's number that returns seconds"


def task_name(name: object, where: str, what: str = "a task's name") -> str:
    """Return the name when a job can carry it.

    Raises:
        DeclarationError: empty, blank around it, unprintable or longer than 255 characters.
    """
    if not isinstance(name, str) or not name.strip():
        raise DeclarationError(
            f'{where}: {what} must be a non-empty string like "invoice.send_email", got {name!r:.80}'
        )
    if name != name.strip() or not name.isprintable():
        raise DeclarationError(f"{where}: {what} may not begin or end with a space or hold unprintables: {name!r:.80}")
    if len(name) > _LONGEST_NAME:
        raise DeclarationError(f"{where}: {what} may have up to {_LONGEST_NAME} characters, got {len(name)}")
    return name


def task_options(
    where: str,
    *,
    max_attempts: int | None,
    timeout: float | timedelta | None,
    backoff: Backoff | None,
    queue: str | None,
    priority: int | None,
    idempotent_on: object,
    interrupt: bool,
) -> dict[str, Any]:
    """Return the options in the form :class:`~jfast_sync.tasks.spec.Task` keeps them.

    Raises:
        DeclarationError: one of them cannot work.
    """
    _check_max_attempts(max_attempts, where)
    if priority is not None and not _whole(priority, -MAX_PRIORITY, MAX_PRIORITY):
        raise DeclarationError(
            f"{where}: priority must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority!r}"
        )
    if queue is not None:
        task_name(queue, where, "a queue's name")
        if len(queue) > _LONGEST_QUEUE:
            raise DeclarationError(f"{where}: queue may have up to {_LONGEST_QUEUE} characters, got {len(queue)}")
    if idempotent_on is not None and not callable(idempotent_on):
        raise DeclarationError(
            f"{where}: idempotent_on must be a function of the payload, like lambda payload: payload['invoice_id'], "
            f"got {idempotent_on!r:.80}"
        )
    if not isinstance(interrupt, bool):
        raise DeclarationError(f"{where}: interrupt must be True or False, got {interrupt!r:.80}")
    return {
        "max_attempts": max_attempts,
        "timeout": _timeout(timeout, where),
        "backoff": _backoff(backoff, where),
        "queue": queue,
        "priority": priority,
        "idempotent_on": idempotent_on,
        "interrupt": interrupt,
    }


def exception_types(option: str, given: object, where: str) -> tuple[type[BaseException], ...]:
    """Return ``retry_on`` or ``give_up_on`` as a tuple; a single exception type may stand alone.

    Raises:
        DeclarationError: something in it is not an exception type.
    """
    members = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, BaseException)):
            raise DeclarationError(f"{where}: {option} takes exception types like (TimeoutError,), got {member!r:.80}")
    return members


def schedule_of(
    where: str,
    task: str,
    *,
    name: str | None = None,
    every: timedelta | None,
    cron: str | None,
    timezone: str | None,
    catch_up: bool | None,
    payload: Mapping[str, Any] | None,
    jitter: timedelta | None = None,
    max_attempts: int | None = None,
) -> ScheduleDeclaration | None:
    """Return the schedule these options describe, or None where there is neither ``every`` nor ``cron``.

    Raises:
        DeclarationError: they contradict each other.
        ScheduleError: the expression, the zone or the interval is refused.
    """
    if every is None and cron is None:
        options = {"timezone": timezone, "catch_up": catch_up, "payload": payload, "jitter": jitter}
        given = [option for option, value in options.items() if value is not None]
        if given:
            raise DeclarationError(f"{where}: {' and '.join(given)} only make sense with every= or cron=")
        return None
    if every is not None and cron is not None:
        raise DeclarationError(f"{where}: every= and cron= exclude each other; declare two schedules for both")
    if every is not None and timezone is not None:
        raise DeclarationError(f"{where}: timezone belongs to cron=; intervals count from the Unix epoch in UTC")
    if every is None and not _is_text(cron):
        raise DeclarationError(f'{where}: cron must be an expression like "0 3 * * *", got {cron!r:.80}')
    if timezone is not None and not _is_text(timezone):
        raise DeclarationError(f'{where}: timezone must be a name like "Europe/Madrid", got {timezone!r:.80}')
    if catch_up is not None and not isinstance(catch_up, bool):
        raise DeclarationError(f"{where}: catch_up must be True or False, got {catch_up!r:.80}")
    _check_jitter(jitter, where)
    _check_max_attempts(max_attempts, where)
    made = ScheduleDeclaration(
        name=task_name(name if name is not None else task, where, "a schedule's name"),
        task=task,
        every=every,
        cron=cron,
        timezone=timezone,
        catch_up=catch_up is not False,
        payload=_tick_payload(payload, where),
        jitter=jitter or None,
        max_attempts=max_attempts,
        where=where,
    )
    try:
        made.recurrence()
    except ScheduleError as exc:
        raise ScheduleError(f"{where}: schedule {made.name!r}: {exc}") from None
    return made


def check_tick_payload(schedule: ScheduleDeclaration | None, payload_type: Any) -> None:
    """Make sure that the handler will be able to read the payload of its own ticks.

    Raises:
        DeclarationError: it does not fit the handler's dataclass or TypedDict.
    """
    if schedule is None or payload_type is None:
        return
    try:
        decode_into(payload_type, {**schedule.payload, "scheduled_for": "2026-01-01T00:00:00+00:00"})
    except PayloadError as exc:
        raise DeclarationError(
            f"{schedule.where}: a tick's {exc}; give payload={{...}} beside every= or cron="
        ) from exc


def _tick_payload(payload: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    try:
        body = encode(payload if payload is not None else {})
    except PayloadError as exc:
        raise DeclarationError(f"{where}: the schedule's {exc}") from exc
    if "scheduled_for" in body:
        raise DeclarationError(f"{where}: the schedule's payload gets scheduled_for from its tick; leave it out")
    return body


def _check_jitter(jitter: object, where: str) -> None:
    if jitter is None:
        return
    if not isinstance(jitter, timedelta) or not timedelta(0) <= jitter <= _LONGEST_JITTER:
        raise DeclarationError(
            f"{where}: jitter must be a timedelta like timedelta(minutes=5), up to {_LONGEST_JITTER.days} day, "
            f"got {jitter!r:.80}"
        )


def _check_max_attempts(max_attempts: object, where: str) -> None:
    if max_attempts is not None and not _whole(max_attempts, 1, 2**31 - 1):
        raise DeclarationError(f"{where}: max_attempts must be a whole number from 1, got {max_attempts!r:.80}")


def _timeout(timeout: Any, where: str) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not _seconds(seconds):
        raise DeclarationError(f"{where}: timeout must be seconds, 0 for none, got {timeout!r:.80}")
    return float(seconds)


def _backoff(backoff: Any, where: str) -> Backoff | None:
    if backoff is None or callable(backoff):
        return backoff  # type: ignore[no-any-return]  # what it returns is checked when it is called
    if isinstance(backoff, timedelta):
        backoff = backoff.total_seconds()
    if isinstance(backoff, tuple):
        if len(backoff) != 2 or not all(_seconds(part) for part in backoff) or backoff[0] > backoff[1]:
            raise DeclarationError(f"{where}: backoff is (base, cap) in seconds, base up to cap; got {backoff!r:.80}")
        return float(backoff[0]), float(backoff[1])
    if not _seconds(backoff):
        raise DeclarationError(f"{where}: backoff is {_FORMS_OF_BACKOFF}; got {backoff!r:.80}")
    return float(backoff)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _seconds(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return value >= 0 and math.isfinite(value) and value <= timedelta(days=366).total_seconds()
