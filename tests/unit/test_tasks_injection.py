"""What each parameter of a handler gets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypedDict, cast

import pytest
import sqlalchemy.orm

from jfast_sync.errors import DeclarationError, PayloadError
from jfast_sync.job import Job, RunningJob
from jfast_sync.tasks import TaskContext, TaskSession, task
from jfast_sync.tasks.registry import isolated

if TYPE_CHECKING:
    from jfast_sync import tasks as for_checkers
    from jfast_sync.job import Job as CheckersJob  # noqa: F401
    from jfast_sync.job import RunningJob as HiddenJob
    from jfast_sync.tasks import TaskSession as HiddenSession

SESSION = cast("sqlalchemy.orm.Session", object())
CONTEXT = object()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with isolated():
        yield


@dataclass
class Mail:
    to: str


class Ping(TypedDict):
    n: int


def run(function: Callable[..., Any], payload: Any = None) -> None:
    job = RunningJob(Job(task="x", payload={} if payload is None else payload))
    with isolated():
        task("x")(function).task.call(job, SESSION, CONTEXT)


def test_everything_in_any_order_and_position() -> None:
    got: list[Any] = []

    def handler(ctx: TaskContext, session: TaskSession, /, job: Job, payload: dict, *, running: RunningJob) -> None:
        got.extend([ctx, session, job, payload, running])

    run(handler, {"a": 1})
    ctx, session, job, payload, running = got
    assert (ctx, session) == (CONTEXT, SESSION)
    assert isinstance(job, Job)
    assert isinstance(running, RunningJob)
    assert running.job is job
    assert payload == {"a": 1}


def test_each_is_optional() -> None:
    got: list[Any] = []

    def nothing() -> None:
        got.append("nothing")

    def only_session(session: TaskSession) -> None:
        got.append(session)

    def bare(payload) -> None:
        got.append(payload)

    run(nothing)
    run(only_session)
    run(bare, {"a": 1})
    assert got == ["nothing", SESSION, {"a": 1}]


def test_takes_session_and_takes_context() -> None:
    def both(session: TaskSession, *, ctx: TaskContext) -> None: ...

    def neither(payload: dict) -> None: ...

    made, other = task("a")(both).task, task("b")(neither).task
    assert (made.takes_session, made.takes_context) == (True, True)
    assert (other.takes_session, other.takes_context) == (False, False)


@pytest.mark.parametrize(
    ("annotation", "wanted"),
    [
        (dict, {"to": "a"}),
        ("dict", {"to": "a"}),
        (dict[str, Any], {"to": "a"}),
        ("dict[str, Any]", {"to": "a"}),
        (Mapping[str, object], {"to": "a"}),
        (Any, {"to": "a"}),
        (object, {"to": "a"}),
        (Mail, Mail("a")),
        ("Mail", Mail("a")),
        (Mail | None, Mail("a")),
        (Optional[Mail], Mail("a")),  # noqa: UP045 - the older spelling works too
        (TaskSession, SESSION),
        ("TaskSession", SESSION),
        ("TaskSession | None", SESSION),
        (sqlalchemy.orm.Session, SESSION),
        ("sqlalchemy.orm.Session", SESSION),
        ("TaskContext", CONTEXT),
    ],
)
def test_annotations(annotation: Any, wanted: Any) -> None:
    got: list[Any] = []

    def handler(it: Any) -> None:
        got.append(it)

    handler.__annotations__["it"] = annotation
    run(handler, {"to": "a"})
    assert got == [wanted]


def test_names_that_only_a_type_checker_imports() -> None:
    got: list[Any] = []

    def handler(
        session: for_checkers.TaskSession,
        ctx: for_checkers.TaskContext | None,
        payload: dict[str, Missing],  # type: ignore[name-defined]  # noqa: F821
    ) -> None:
        got.extend([session, ctx, payload])

    run(handler, {"a": 1})
    assert got == [SESSION, CONTEXT, {"a": 1}]


def test_a_hidden_name_that_says_nothing_is_refused() -> None:
    def handler(session: HiddenSession, job: HiddenJob) -> None: ...

    with pytest.raises(DeclarationError) as caught:
        run(handler)
    message = str(caught.value)
    assert message.startswith(f"{__file__}:")
    assert "the annotation of 'session' of test_a_hidden" in message
    assert "name 'HiddenSession' is not defined" in message
    assert "outside of TYPE_CHECKING" in message


def test_types_of_the_scope_that_declares_the_task() -> None:
    @dataclass
    class Local:
        n: int

    got: list[Any] = []

    @task("local")
    def handler(payload: Local) -> None:
        got.append(payload)

    handler.task.call(RunningJob(Job(task="local", payload={"n": 1})))
    assert got == [Local(1)]


def test_a_typed_dict_is_checked() -> None:
    got: list[Any] = []

    def handler(payload: Ping) -> None:
        got.append(payload)

    run(handler, {"n": 1})
    assert got == [{"n": 1}]
    with pytest.raises(PayloadError, match=r"payload\.n: expected a whole number, got a text"):
        run(handler, {"n": "1"})


def test_a_wrapped_function_is_read_through() -> None:
    got: list[Any] = []

    def logged(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            got.append("before")
            function(*args, **kwargs)

        return wrapper

    @logged
    def handler(session: TaskSession, payload: Mail) -> None:
        got.extend([session, payload])

    run(handler, {"to": "a"})
    assert got == ["before", SESSION, Mail("a")]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(*args): ...", "takes *args, which no job can fill"),
        ("def f(payload, **options): ...", "takes **options, which no job can fill"),
        ("def f(payload, other): ...", "two parameters for the payload, 'payload' and 'other'"),
        ("def f(a: TaskSession, b: TaskSession): ...", "two parameters for the session"),
        ("def f(payload: dict, mail: Mail): ...", "two parameters for the payload"),
        ("def f(payload: int): ...", "no job can fill 'payload: int' of f()"),
        ("def f(payload: dict, width: int = 100): ...", "no job can fill 'width: int' of f()"),
        ("def f(payload: list[dict]): ...", "no job can fill 'payload: list[dict]'"),
        ("def f(payload: 'Mial'): ...", "cannot be resolved (name 'Mial' is not defined)"),
        ("def f(payload: 'a b'): ...", "cannot be resolved"),
        ("def f(payload: Mail | Job): ...", "no job can fill"),
    ],
)
def test_refuses_what_no_job_can_fill(source: str, reason: str) -> None:
    namespace = {"Mail": Mail, "TaskSession": TaskSession, "Job": Job}
    exec(compile(source, "/somewhere/tasks.py", "exec"), namespace)
    with pytest.raises(DeclarationError) as caught:
        task("x")(namespace["f"])
    message = str(caught.value)
    assert message.startswith("/somewhere/tasks.py:1: ")
    assert reason in message


def test_refuses_a_payload_type_that_json_cannot_give() -> None:
    @dataclass
    class Tags:
        tags: set[str]

    def handler(payload: Tags) -> None: ...

    handler.__annotations__["payload"] = Tags
    with pytest.raises(
        DeclarationError, match=r"'payload' of .* cannot be read from JSON: payload\.tags: a field of type set"
    ):
        run(handler)


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async_generator"])
def test_a_handler_whose_body_did_not_run_fails(kind: str) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[None]:
        yield

    async def async_generator() -> Any:
        yield

    made = {"coroutine": coroutine, "generator": generator, "async_generator": async_generator}[kind]
    with pytest.raises(TypeError, match=f"returned a {kind}, so its body did not run"):
        run(lambda payload: made())


def test_what_a_handler_raises_comes_through() -> None:
    def handler(payload: dict) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(handler)


def test_the_key_is_taken_from_what_the_handler_sees() -> None:
    @task("typed", idempotent_on=lambda mail: mail.to)
    def typed(payload: Mail) -> None: ...

    @task("plain", idempotent_on=lambda payload: payload["id"])
    def plain(session: TaskSession) -> None: ...

    @task("none")
    def none() -> None: ...

    assert typed.task.idempotency_key({"to": "a"}) == "str:a"
    assert plain.task.idempotency_key({"id": 7}) == "int:7"
    assert none.task.idempotency_key({"id": 7}) is None
    assert plain.task.needs_database
    with pytest.raises(KeyError, match="id"):
        plain.task.idempotency_key({})
