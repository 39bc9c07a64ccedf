"""The ``@task`` decorator, and what it leaves in the place of the function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar

from jfast_sync.context import current_app
from jfast_sync.errors import DeclarationError, PayloadError
from jfast_sync.job import Job, new_id
from jfast_sync.payload import check_against
from jfast_sync.tasks.declarations import Declarations, declarations
from jfast_sync.tasks.injection import injection_of
from jfast_sync.tasks.options import check_tick_payload, exception_types, schedule_of, task_name, task_options
from jfast_sync.tasks.spec import Backoff, Task

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["TaskDecorator", "TaskFunction", "TaskOptions", "task", "task_of"]

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """The options of :func:`task`, which describes them."""

    idempotent_on: Callable[[Any], Any] | None
    max_attempts: int | None
    timeout: float | timedelta | None
    backoff: Backoff | None
    retry_on: type[BaseException] | Iterable[type[BaseException]]
    give_up_on: type[BaseException] | Iterable[type[BaseException]]
    queue: str | None
    priority: int | None
    every: timedelta | None
    cron: str | None
    timezone: str | None
    catch_up: bool | None
    payload: Mapping[str, Any] | None
    jitter: timedelta | None
    aliases: Iterable[str]
    interrupt: bool


class TaskFunction(Generic[P, R]):
    """A task's function: call it as before, or enqueue it. ``task`` is its declaration."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R], task: Task, app: Callable[[], Any]) -> None:
        functools.update_wrapper(self, function)
        self.task = task
        self._function = function
        self._app = app

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now; no job, no injection."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.task.name!r} at {self.task.where}>"

    def job(
        self,
        payload: Any = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        id: str | None = None,  # noqa: A002 - the field's name
        max_attempts: int | None = None,
        tenant_id: str | None = None,
        request_id: str | None = None,
    ) -> Job:
        """Build the job that :meth:`enqueue` would store, for ``enqueue_many`` or an outbox of your own.

        Arguments and errors are those of :meth:`enqueue`.
        """
        given = {} if payload is None else payload
        named = {"tenant_id": tenant_id, "request_id": request_id}
        given_context: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        return Job(
            task=self.task.name,
            payload=given if self.task.payload_type is None else check_against(self.task.payload_type, given),
            id=new_id() if id is None else id,
            queue=queue or self.task.queue or "default",
            priority=priority if priority is not None else self.task.priority or 0,
            max_attempts=max_attempts,
            available_at=at,
            delay=None if delay is None else _delay(delay),
            **given_context,
        )

    def enqueue(
        self,
        payload: Any = None,
        session: Session | None = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        id: str | None = None,  # noqa: A002 - the field's name
        max_attempts: int | None = None,
        tenant_id: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Enqueue a job of this task in the current app and return the job's id.

        Args:
            payload: a dict with string keys, a mapping or a dataclass instance; nothing is an empty one.
            session: yours; the job exists if and only if its transaction commits. Without it the job is stored at
                once, in a transaction of its own.
            delay: seconds, or a timedelta: not before this long from now.
            at: an aware instant instead of ``delay``.
            queue, priority, max_attempts: instead of the task's own.
            id: 1 to 128 characters; a job whose id is already stored is left as it is.
            tenant_id, request_id: instead of those of the running request or job.

        Raises:
            PayloadError: the payload or an argument cannot be stored, or does not fit the handler's dataclass or
                TypedDict; nothing was stored.
            ConfigError: no app is open in this process.
            UnavailableError: the queue cannot be reached.
        """
        job = self.job(
            payload,
            delay=delay,
            at=at,
            queue=queue,
            priority=priority,
            id=id,
            max_attempts=max_attempts,
            tenant_id=tenant_id,
            request_id=request_id,
        )
        app = self._app()
        stored = app.queue.enqueue(job) if session is None else app.outbox.enqueue(session, job)
        return str(stored)


class TaskDecorator:
    """What :func:`task` returns: give it the function."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._options = options
        self._target: Declarations | None = None
        self._others: tuple[Declarations, ...] = ()
        self._app: Callable[[], Any] = current_app

    def into(self, target: Declarations, other: Declarations, app: Callable[[], Any]) -> TaskDecorator:
        """Declare in ``target`` instead of process-wide; ``other`` may not have the name either."""
        self._target, self._others, self._app = target, (other,), app
        return self

    def __call__(self, function: Callable[P, R]) -> TaskFunction[P, R]:
        declared = _declared(function, self._name, self._options, sys._getframe(1))
        for other in self._others:
            other.check_free(declared)
        (self._target or declarations()).add(declared)
        return TaskFunction(function, declared, self._app)


def task(
    name: str,
    *,
    idempotent_on: Callable[[Any], Any] | None = None,
    max_attempts: int | None = None,
    timeout: float | timedelta | None = None,
    backoff: Backoff | None = None,
    retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
    give_up_on: type[BaseException] | Iterable[type[BaseException]] = (),
    queue: str | None = None,
    priority: int | None = None,
    every: timedelta | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    catch_up: bool | None = None,
    payload: Mapping[str, Any] | None = None,
    jitter: timedelta | None = None,
    aliases: Iterable[str] = (),
    interrupt: bool = False,
) -> TaskDecorator:
    """Declare a function as the task that jobs of this name run.

    Its parameters are filled by annotation, each optional, in any order: the payload (``dict``, or a dataclass or
    TypedDict that the payload is checked against), ``TaskSession``, ``TaskContext``, ``Job``.

    Args:
        name: a wire contract between who enqueues and who runs; by custom ``"module.verb"``.
        idempotent_on: a function of the payload; a job whose key was claimed before is skipped. None as a key: no key.
        max_attempts: starts allowed before a dead letter.
        timeout: seconds or a timedelta for one attempt; 0 for none.
        backoff: seconds before the next attempt, or ``(base, cap)`` of the doubling, or a function of the attempt.
        retry_on: retry on these exceptions only; empty means on every one.
        give_up_on: a dead letter at once on these; wins over ``retry_on``.
        queue: the named queue its jobs go to.
        priority: -9 to 9, higher first.
        every, cron: let it recur, at an interval or by a cron expression.
        timezone: of ``cron``; UTC unless given.
        catch_up: whether a tick missed while nothing ran is made up for; yes unless given.
        payload: of every tick's job; ``scheduled_for`` is added.
        jitter: start a tick's job up to this much later than its tick, to spread the load.
        aliases: former names, whose jobs still run here.
        interrupt: let a timeout raise inside the handler's thread, even inside a lock.

    Raises:
        DeclarationError: the declaration cannot work; the message names the place and what to write instead.
    """
    if callable(name):
        where = _where(name, sys._getframe(1))
        example = f"{_module(name) or 'invoice'}.{getattr(name, '__name__', 'send')}"
        raise DeclarationError(f'{where}: @task needs a name, which is a wire contract; write @task("{example}")')
    return TaskDecorator(name, {key: value for key, value in locals().items() if key != "name"})


def _declared(function: Callable[..., Any], name: str, options: dict[str, Any], scope: FrameType) -> Task:
    where = _where(function, scope)
    _check_function(function, where)
    inner = inspect.unwrap(function)
    chosen = dict(options)
    recurring = {key: chosen.pop(key) for key in ("every", "cron", "timezone", "catch_up", "payload", "jitter")}
    line = f"{scope.f_code.co_filename}:{scope.f_lineno}"  # the decorator's own: a function may have several
    schedule, injection = schedule_of(line, name, **recurring), injection_of(function, where, scope.f_locals)
    check_tick_payload(schedule, injection.payload_type)
    aliases, retry_on, give_up_on = (chosen.pop(key) for key in ("aliases", "retry_on", "give_up_on"))
    return Task(
        name=task_name(name, where),
        function=function,
        injection=injection,
        where=where,
        module=_module(function),
        execution=getattr(inner, "__globals__", {}).get("__spec__"),
        aliases=_aliases(name, aliases, where),
        retry_on=exception_types("retry_on", retry_on, where),
        give_up_on=exception_types("give_up_on", give_up_on, where),
        schedule=schedule,
        **task_options(where, **chosen),
    )


def task_of(
    function: Callable[..., Any], name: str, options: Mapping[str, Any], scope: FrameType, *, subscribes_to: str
) -> Task:
    """Return the task of a subscriber to an event type; with a session it claims the event in the inbox.

    Raises:
        DeclarationError: the declaration cannot work.
    """
    parameters = inspect.signature(task).parameters
    unset = {key: parameter.default for key, parameter in parameters.items() if key != "name"}
    declared = _declared(function, name, {**unset, **options}, scope)
    key = _event_id if declared.takes_session else None
    return replace(declared, subscribes_to=subscribes_to, idempotent_on=key)


def _event_id(payload: Mapping[str, Any]) -> str:
    return str(payload["event"]["id"])


def _check_function(function: object, where: str) -> None:
    called = getattr(function, "__qualname__", repr(function))
    if isinstance(function, (type, staticmethod, classmethod)) or not callable(function):
        raise DeclarationError(f"{where}: @task decorates a plain function, got {function!r:.80}")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise DeclarationError(
            f"{where}: {called}() is an async def; handlers here are plain functions (def), run in threads. For "
            "asyncio code write a def that calls asyncio.run(...)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"{where}: {called}() is a generator (it yields), so its body would never run; write a def"
        )
    if next(iter(inspect.signature(function).parameters), None) in ("self", "cls"):
        raise DeclarationError(f"{where}: {called}() is a method; a task is a function outside of a class")


def _aliases(name: str, given: Iterable[str], where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise DeclarationError(f"{where}: aliases is a list of names, like [{given!r}]")
    aliases = tuple(task_name(alias, where, "an alias") for alias in given)
    if name in aliases or len(set(aliases)) != len(aliases):
        raise DeclarationError(f"{where}: the names of task {name!r} are not all different: aliases={list(aliases)!r}")
    return aliases


def _where(function: object, scope: FrameType) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None:
        return f"{scope.f_code.co_filename}:{scope.f_lineno}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _module(function: Callable[..., Any]) -> str:
    name = str(getattr(function, "__module__", None) or "")
    parts = name.split(".")
    return parts[1] if parts[0] == "modules" and len(parts) > 1 else name


def _delay(delay: float | timedelta) -> timedelta:
    try:
        return delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (TypeError, ValueError, OverflowError):
        raise PayloadError(f"delay must be seconds or a timedelta, got {delay!r:.80}") from None
