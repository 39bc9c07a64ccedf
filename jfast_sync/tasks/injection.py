"""What each parameter of a handler gets, decided once, from its annotation, when the task is declared."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

from jfast_sync.errors import DeclarationError, PayloadError
from jfast_sync.job import Job, RunningJob
from jfast_sync.payload import check_type, is_payload_type
from jfast_sync.tasks.injected import TaskContext, TaskSession

__all__ = ["Injection", "Kind", "injection_of"]


class Kind(Enum):
    """What a parameter gets."""

    PAYLOAD = "the payload"
    SESSION = "the session"
    CONTEXT = "the app context"
    JOB = "the job"
    RUNNING_JOB = "the running job"


@dataclass(frozen=True, slots=True)
class Injection:
    """How to call one handler: what each parameter gets, in order, and what the payload is checked against.

    ``payload_type`` is a dataclass or a TypedDict; None means that the payload is passed on as the dict it is.
    """

    positional: tuple[Kind, ...] = ()
    keywords: tuple[tuple[str, Kind], ...] = ()
    payload_type: Any = None

    def takes(self, kind: Kind) -> bool:
        return kind in self.positional or any(kind is other for _, other in self.keywords)


_BY_TYPE: Final[dict[object, Kind]] = {
    TaskSession: Kind.SESSION,
    TaskContext: Kind.CONTEXT,
    Job: Kind.JOB,
    RunningJob: Kind.RUNNING_JOB,
}
_BEHIND_THE_MARKS: Final = {
    ("sqlalchemy.orm.session", "Session"): Kind.SESSION,
    ("jfast_sync.core", "JFast"): Kind.CONTEXT,
}
_PLAIN_PAYLOADS: Final = (dict, Mapping, MutableMapping, Any, object, inspect.Parameter.empty)
#: For names that exist for the type checker only (imported under TYPE_CHECKING).
_BY_NAME: Final = {
    "TaskSession": Kind.SESSION,
    "Session": Kind.SESSION,
    "TaskContext": Kind.CONTEXT,
    "JFast": Kind.CONTEXT,
    "Job": Kind.JOB,
    "RunningJob": Kind.RUNNING_JOB,
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping", "Any", "object"), Kind.PAYLOAD),
}
_CHOICES: Final = (
    "a parameter gets the payload (dict, a dataclass or a TypedDict), TaskSession, TaskContext, Job or RunningJob"
)


def injection_of(function: Callable[..., Any], where: str, local_names: Mapping[str, Any] | None = None) -> Injection:
    """Read a handler's signature.

    Args:
        function: the handler; a wrapper made with ``functools.wraps`` is read through.
        where: ``file:line``, for messages.
        local_names: names of the scope that declares the task, for annotations that are strings.

    Raises:
        DeclarationError: a parameter that nothing can fill.
    """
    inner = inspect.unwrap(function)
    names = (getattr(inner, "__globals__", {}), dict(local_names or {}))
    positional: list[Kind] = []
    keywords: list[tuple[str, Kind]] = []
    seen: dict[Kind, str] = {}
    payload_type = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DeclarationError(f"{where}: {_called(function)} takes {parameter}, which no job can fill; {_CHOICES}")
        kind, wanted = _classify(parameter, function, where, names)
        if kind in seen:
            raise DeclarationError(
                f"{where}: {_called(function)} has two parameters for {kind.value}, {seen[kind]!r} and "
                f"{parameter.name!r}; {_CHOICES}, each at most once"
            )
        seen[kind] = parameter.name
        payload_type = wanted or payload_type
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords.append((parameter.name, kind))
        else:
            positional.append(kind)
    return Injection(tuple(positional), tuple(keywords), payload_type)


def _classify(
    parameter: inspect.Parameter, function: Callable[..., Any], where: str, names: tuple[dict[str, Any], dict[str, Any]]
) -> tuple[Kind, Any]:
    try:
        annotation = _resolved(parameter.annotation, names)
    except (NameError, AttributeError, SyntaxError, TypeError) as exc:
        kind = _BY_NAME.get(_bare_name(parameter.annotation))
        if kind is None:
            raise DeclarationError(
                f"{where}: the annotation of {parameter.name!r} of {_called(function)}, {parameter.annotation!r}, "
                f"cannot be resolved ({exc}); define it above the task and import it outside of TYPE_CHECKING"
            ) from exc
        return kind, None
    annotation = _without_none(annotation)
    if kind := _injected(annotation):
        return kind, None
    if any(plain is annotation or plain is typing.get_origin(annotation) for plain in _PLAIN_PAYLOADS):
        return Kind.PAYLOAD, None
    if is_payload_type(annotation):
        _check_payload_type(annotation, parameter.name, function, where)
        return Kind.PAYLOAD, annotation
    raise DeclarationError(f"{where}: no job can fill {_written(parameter)!r} of {_called(function)}; {_CHOICES}")


def _check_payload_type(annotation: Any, name: str, function: Callable[..., Any], where: str) -> None:
    try:
        check_type(annotation)
    except PayloadError as exc:
        raise DeclarationError(f"{where}: {name!r} of {_called(function)} cannot be read from JSON: {exc}") from exc


def _injected(annotation: object) -> Kind | None:
    for known, kind in _BY_TYPE.items():
        if annotation is known:
            return kind
    if not isinstance(annotation, type):
        return None
    # By name: declaring a task loads neither SQLAlchemy nor the app.
    return _BEHIND_THE_MARKS.get((annotation.__module__, annotation.__name__))


def _resolved(annotation: object, names: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    if annotation is inspect.Parameter.empty or annotation is Any:
        return annotation
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, *names)["it"]


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return members[0] if len(members) == 1 else annotation
    return annotation


def _bare_name(annotation: object) -> str:
    text = str(annotation).strip("'\" ")
    text = re.sub(r"\s*\|\s*None$|^None\s*\|\s*|^(?:typing\.|t\.)?Optional\[(.*)\]$", r"\1", text)
    return text.split("[")[0].rsplit(".", 1)[-1].strip()


def _written(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return f"{parameter.name}: {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"


def _called(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', function)}()"
