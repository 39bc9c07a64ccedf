"""``@subscribe``: a function that reacts to events of one type is a task, whose jobs carry the event."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import FrameType, SimpleNamespace
from typing import Any, Final, TypeVar

from jfast_sync.context import bind
from jfast_sync.errors import DeclarationError, PayloadError
from jfast_sync.event import Event
from jfast_sync.tasks.declarations import declarations
from jfast_sync.tasks.declare import task_of
from jfast_sync.tasks.spec import Backoff

__all__ = ["subscribe"]

F = TypeVar("F", bound=Callable[..., Any])

_MAX_ATTEMPTS: Final = 5
_LONGEST_TYPE: Final = 200


def subscribe(
    event_type: str,
    *,
    name: str | None = None,
    max_attempts: int = _MAX_ATTEMPTS,
    timeout: float | timedelta | None = None,
    backoff: Backoff | None = None,
    retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
    give_up_on: type[BaseException] | Iterable[type[BaseException]] = (),
    queue: str | None = None,
    priority: int | None = None,
) -> Callable[[F], F]:
    """Let a function react to every event of a type that this service publishes, each in a job of its own.

    Its parameters are filled by annotation, each optional, in any order: ``Event``, ``TaskSession``, ``TaskContext``,
    ``Job``. With a session the reaction happens once per event: the event's id is claimed in the session's
    transaction. It runs as the tenant, and within the request and trace, that the event carries.

    Args:
        event_type: what to react to, like ``"receipt.registered"``.
        name: the second half of the task's name, ``<event_type>-><name>``. ``<module>.<function>`` unless given, so
            give it before the function is renamed: jobs that wait carry the old name.
        max_attempts: starts allowed before a dead letter.
        timeout, backoff, retry_on, give_up_on, queue, priority: as for :func:`jfast_sync.tasks.task`.

    Raises:
        DeclarationError: the declaration cannot work; the message names the place and what to write instead.
    """
    options = {
        "max_attempts": max_attempts,
        "timeout": timeout,
        "backoff": backoff,
        "retry_on": retry_on,
        "give_up_on": give_up_on,
        "queue": queue,
        "priority": priority,
    }
    scope = sys._getframe(1)
    called_at = f"{scope.f_code.co_filename}:{scope.f_lineno}"
    _check_type(event_type, called_at)
    _check_name(name, called_at)

    def declare(function: F) -> F:
        scope = sys._getframe(1)
        handler = _handler(function, scope)
        task_name = f"{event_type}->{name or _default_name(function)}"
        declarations().add(task_of(handler, task_name, options, scope, subscribes_to=event_type))
        return function

    return declare


def _check_type(value: object, where: str) -> None:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_TYPE or "->" in value:
        raise DeclarationError(
            f'{where}: @subscribe needs the event\'s type, 1 to {_LONGEST_TYPE} characters without "->", got '
            f'{value!r:.80}; write @subscribe("receipt.registered")'
        )


def _check_name(value: object, where: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise DeclarationError(f"{where}: the name of a subscriber is a non-empty string, got {value!r:.80}")


def _default_name(function: Callable[..., Any]) -> str:
    """Return ``<module>.<function>``, module being the folder under ``modules/``; the dotted path elsewhere."""
    parts = function.__module__.split(".")
    if parts[0] == "modules" and len(parts) > 1:
        return f"{parts[1]}.{function.__name__}"
    return f"{function.__module__}.{function.__qualname__}"


def _handler(function: Callable[..., Any], scope: FrameType) -> Callable[..., Any]:
    """Return a function with the job's payload in the place of the event, which it rebuilds."""
    if not inspect.isfunction(function):
        raise DeclarationError(
            f"{scope.f_code.co_filename}:{scope.f_lineno}: @subscribe decorates a plain function, got {function!r:.80}"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return function  # refused with the words that fit it
    signature = inspect.signature(function)
    place = next((known for known in signature.parameters if _takes_event(function, known, scope)), None)
    shown = [
        parameter.replace(annotation=dict) if known == place else parameter
        for known, parameter in signature.parameters.items()
    ]

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if place is None:
            return function(*bound.args, **bound.kwargs)
        event = _event(bound.arguments[place])
        bound.arguments[place] = event
        with bind(event.origin):
            return function(*bound.args, **bound.kwargs)

    functools.update_wrapper(run, function)
    run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return run


def _takes_event(function: Callable[..., Any], name: str, scope: FrameType) -> bool:
    annotation: Any = inspect.signature(function).parameters[name].annotation
    if isinstance(annotation, str):
        holder = SimpleNamespace(__annotations__={"it": annotation})
        try:
            annotation = typing.get_type_hints(holder, function.__globals__, scope.f_locals)["it"]
        except Exception:
            return str(annotation).strip("'\" ").rsplit(".", 1)[-1] == "Event"  # imported for the type checker only
    return annotation is Event


def _event(payload: Mapping[str, Any]) -> Event:
    fields = payload.get("event")
    if not isinstance(fields, Mapping):
        raise PayloadError('not a subscriber\'s job: its payload has no "event"')
    return Event.from_dict(fields)
