"""Subscribers: their names, what their parameters get, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jfast_sync.context import current_request_id, current_tenant_id
from jfast_sync.errors import DeclarationError, PayloadError
from jfast_sync.events import Event, subscribe
from jfast_sync.job import Job, RunningJob
from jfast_sync.tasks import TaskContext, TaskSession, task
from jfast_sync.tasks.registry import Registry, isolated


@pytest.fixture(autouse=True)
def fresh():
    with isolated():
        yield


def job_of(event: Event, name: str) -> RunningJob:
    return RunningJob(Job(task=name, payload={"topic": "receipts", "event": event.to_dict()}))


def test_the_task_is_named_by_type_module_and_function():
    def check(event: Event) -> None: ...

    check.__module__ = "modules.alert.tasks"
    subscribe("receipt.registered")(check)

    (found,) = Registry().subscribers("receipt.registered")
    assert (found.name, found.max_attempts) == ("receipt.registered->alert.check", 5)


def test_a_name_of_its_own_survives_a_rename():
    @subscribe("receipt.registered", name="alert.check_budget", max_attempts=2)
    def renamed(event: Event) -> None: ...

    (found,) = Registry().subscribers("receipt.registered")
    assert (found.name, found.max_attempts) == ("receipt.registered->alert.check_budget", 2)


def test_the_decorated_function_stays_what_it_was():
    def check(event: Event) -> str:
        return event.id

    assert subscribe("x")(check) is check


def test_parameters_are_filled_in_any_order():
    got: list[Any] = []

    @subscribe("x", name="n")
    def react(context: TaskContext, *, session: TaskSession, event: Event, job: Job) -> None:
        got.extend([context, session, event, job.task])

    event = Event(type="x", data={"n": 1})
    (found,) = Registry().subscribers("x")
    found.call(job_of(event, found.name), "the session", "the context")  # type: ignore[arg-type]

    assert got == ["the context", "the session", event, "x->n"]


def test_it_runs_as_whom_the_event_says():
    got: list[Any] = []

    @subscribe("x", name="n")
    def react(event: Event) -> None:
        got.extend([current_tenant_id(), current_request_id()])

    (found,) = Registry().subscribers("x")
    found.call(job_of(Event(type="x", tenant_id="t-1", request_id="r-1"), found.name))

    assert got == ["t-1", "r-1"]
    assert current_tenant_id() is None


def test_an_event_is_not_needed():
    got: list[str] = []

    @subscribe("x", name="n")
    def react() -> None:
        got.append("ran")

    (found,) = Registry().subscribers("x")
    found.call(job_of(Event(type="x"), found.name))

    assert got == ["ran"]


def test_with_a_session_the_event_is_claimed_under_its_bare_id():
    @subscribe("x", name="with")
    def react(event: Event, session: TaskSession) -> None: ...

    @subscribe("x", name="without")
    def other(event: Event) -> None: ...

    with_session, without = Registry().subscribers("x")
    payload = {"topic": "t", "event": Event(type="x", id="e-1").to_dict()}
    assert with_session.idempotency_key(payload) == "e-1"
    assert without.idempotency_key(payload) is None


def test_subscribers_are_found_by_type_only():
    @subscribe("x", name="n")
    def react(event: Event) -> None: ...

    @task("x")
    def no_subscriber() -> None: ...

    assert [found.name for found in Registry().subscribers("x")] == ["x->n"]
    assert Registry().subscribers("n") == []


def test_one_name_by_two_functions_is_refused_naming_both_places():
    @subscribe("x", name="n")
    def one(event: Event) -> None: ...

    with pytest.raises(DeclarationError, match=r"one\(\) at .*test_events_subscribe.py:\d+"):

        @subscribe("x", name="n")
        def two(event: Event) -> None: ...


@pytest.mark.parametrize("event_type", ["", None, 7, "a->b", "x" * 201])
def test_a_type_that_cannot_be_one(event_type):
    with pytest.raises(DeclarationError, match=r"@subscribe needs the event's type"):
        subscribe(event_type)


def test_forgotten_parentheses_are_refused():
    with pytest.raises(DeclarationError, match="@subscribe needs"):

        @subscribe  # type: ignore[arg-type]
        def react(event: Event) -> None: ...


def test_async_handlers_are_refused():
    with pytest.raises(DeclarationError, match="async def"):

        @subscribe("x")
        async def react(event: Event) -> None: ...


def test_a_parameter_that_nothing_fills_is_refused():
    with pytest.raises(DeclarationError, match="'number: int'"):

        @subscribe("x")
        def react(event: Event, number: int) -> None: ...


def test_a_payload_without_an_event_fails_the_job():
    @subscribe("x", name="n")
    def react(event: Event) -> None: ...

    (found,) = Registry().subscribers("x")
    with pytest.raises(PayloadError, match='has no "event"'):
        found.call(RunningJob(Job(task=found.name, payload={})))
