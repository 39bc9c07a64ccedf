"""Declaring tasks: what is accepted, what is refused at import, and what the decorator leaves behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from jfast_sync.errors import DeclarationError
from jfast_sync.outcome import Policy
from jfast_sync.tasks import task
from jfast_sync.tasks.registry import Registry, isolated


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with isolated():
        yield


def refusal(name: Any = "x.y", function: Any = None, **options: Any) -> str:
    def handler(payload: dict) -> None: ...

    with pytest.raises(DeclarationError) as caught:
        task(name, **options)(function or handler)
    message = str(caught.value)
    assert f"{__file__}:" in message
    assert Registry().names() == []
    return message


def test_the_function_stays_a_function() -> None:
    @task("sum.add")
    def add(payload: dict) -> int:
        """Add up."""
        return sum(payload.values())

    total: int = add({"a": 1, "b": 2})
    assert total == 3
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add up.", __name__)
    assert add.__wrapped__({"a": 1}) == 1
    assert repr(add).startswith(f"<task 'sum.add' at {__file__}:")
    assert add.task is Registry().get("sum.add")


def test_every_option_is_kept() -> None:
    def key(payload: dict) -> Any:
        return payload["id"]

    @task(
        "report.make",
        idempotent_on=key,
        max_attempts=5,
        timeout=timedelta(minutes=1),
        backoff=(1, 60),
        retry_on=OSError,
        give_up_on=[KeyError, ValueError],
        queue="slow",
        priority=-9,
        cron="0 3 * * *",
        timezone="Europe/Madrid",
        catch_up=False,
        payload={"span": Decimal(1)},
        aliases=["report.build"],
        interrupt=True,
    )
    def make(payload: dict) -> None: ...

    made = make.task
    assert (made.name, made.aliases, made.max_attempts, made.timeout) == ("report.make", ("report.build",), 5, 60.0)
    assert (made.backoff, made.retry_on, made.give_up_on) == ((1.0, 60.0), (OSError,), (KeyError, ValueError))
    assert (made.queue, made.priority, made.interrupt, made.idempotent_on) == ("slow", -9, True, key)
    assert made.schedule is not None
    assert (made.schedule.name, made.schedule.task, made.schedule.cron) == ("report.make", "report.make", "0 3 * * *")
    assert (made.schedule.timezone, made.schedule.catch_up, made.schedule.payload) == (
        "Europe/Madrid",
        False,
        {"span": "1"},
    )
    assert made.where.startswith(f"{__file__}:")
    assert made.module == __name__


def test_an_option_left_out_is_left_to_the_configuration() -> None:
    @task("plain")
    def plain() -> None: ...

    made = plain.task
    options = (
        made.max_attempts,
        made.timeout,
        made.backoff,
        made.queue,
        made.priority,
        made.schedule,
        made.idempotent_on,
    )
    assert options == (None,) * 7
    assert not made.interrupt
    assert not made.needs_database


def test_module_is_the_folder_under_modules() -> None:
    def handler(payload: dict) -> None: ...

    handler.__module__ = "modules.invoice.tasks.mail"
    assert task("a")(handler).task.module == "invoice"


async def a_coroutine(payload: dict) -> None: ...


def a_generator(payload: dict) -> Iterator[int]:
    yield 1


async def an_async_generator(payload: dict) -> Any:
    yield 1


class Command:
    async def __call__(self, payload: dict) -> None: ...


class Owner:
    def method(self, payload: dict) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (a_coroutine, "a_coroutine() is an async def"),
        (functools.partial(a_coroutine), "is an async def"),
        (Command(), "is an async def"),
        (a_generator, "a_generator() is a generator"),
        (an_async_generator, "an_async_generator() is a generator"),
        (Owner, "a plain function"),
        (Owner.method, "Owner.method() is a method"),
        (staticmethod(a_generator), "a plain function"),
        ("text", "a plain function"),
    ],
)
def test_refuses_what_cannot_be_a_handler(function: Any, reason: str) -> None:
    assert reason in refusal(function=function)


def test_accepts_a_function_that_runs_its_own_loop() -> None:
    @functools.wraps(a_coroutine)
    def sync(payload: dict) -> None:
        asyncio.run(a_coroutine(payload))

    task("x.y")(sync)(payload={})


def test_a_bare_decorator_says_what_to_write() -> None:
    with pytest.raises(DeclarationError, match=r'write @task\(".*\.send_mail"\)'):

        @task  # type: ignore[arg-type]
        def send_mail(payload: dict) -> None: ...


@pytest.mark.parametrize("name", ["", "  ", " x", "x\n", "a\x00b", "x" * 256, 5, None])
def test_refuses_names(name: Any) -> None:
    assert "a task's name" in refusal(name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"max_attempts": 2**31}, "max_attempts must be a whole number"),
        ({"timeout": -1}, "timeout must be seconds"),
        ({"timeout": float("nan")}, "timeout must be seconds"),
        ({"timeout": "10"}, "timeout must be seconds"),
        ({"timeout": timedelta(seconds=-1)}, "timeout must be seconds"),
        ({"backoff": -1}, "backoff is seconds, (base, cap)"),
        ({"backoff": "2"}, "backoff is seconds, (base, cap)"),
        ({"backoff": (1, 2, 3)}, "backoff is (base, cap)"),
        ({"backoff": (10, 1)}, "base up to cap"),
        ({"backoff": (1, float("inf"))}, "backoff is (base, cap)"),
        ({"retry_on": "OSError"}, "retry_on takes exception types"),
        ({"retry_on": [int]}, "retry_on takes exception types"),
        ({"give_up_on": ValueError("x")}, "give_up_on takes exception types"),
        ({"retry_on": None}, "retry_on takes exception types"),
        ({"queue": ""}, "a queue's name must be a non-empty string"),
        ({"queue": "q" * 129}, "queue may have up to 128 characters"),
        ({"priority": 10}, "priority must be a whole number from -9 to 9"),
        ({"priority": 1.0}, "priority must be a whole number"),
        ({"idempotent_on": "id"}, "idempotent_on must be a function of the payload"),
        ({"interrupt": "yes"}, "interrupt must be True or False"),
        ({"every": timedelta(minutes=1), "cron": "* * * * *"}, "exclude each other"),
        ({"every": 60}, "an interval is a timedelta"),
        ({"every": timedelta(milliseconds=10)}, "an interval lasts one second or longer"),
        ({"every": timedelta(days=-1)}, "an interval lasts one second or longer"),
        ({"every": timedelta(hours=1), "timezone": "UTC"}, "timezone belongs to cron="),
        ({"cron": ""}, "cron must be an expression"),
        ({"cron": "* * * * *", "timezone": 5}, "timezone must be a name"),
        ({"cron": "* * * * *", "catch_up": 1}, "catch_up must be True or False"),
        ({"cron": "* * * * *", "payload": {"x": {1}}}, "the schedule's payload.x: a set"),
        ({"timezone": "UTC"}, "timezone only make sense with every= or cron="),
        ({"catch_up": False, "payload": {}}, "catch_up and payload only make sense"),
        ({"aliases": "old"}, "aliases is a list of names"),
        ({"aliases": [""]}, "an alias must be a non-empty string"),
        ({"aliases": ["x.y"]}, "are not all different"),
        ({"aliases": ["a", "a"]}, "are not all different"),
    ],
)
def test_refuses_incoherent_options(options: dict[str, Any], reason: str) -> None:
    assert reason in refusal(**options)


@dataclass
class Report:
    span: str
    scheduled_for: datetime


def make_report(payload: Report) -> None: ...


def test_a_tick_must_fit_the_handlers_payload() -> None:
    reason = "a tick's payload.span: missing; Report has no default for it; give payload={...} beside every= or cron="
    assert reason in refusal(function=make_report, cron="@daily")
    assert task("x", cron="@daily", payload={"span": "day"})(make_report).task.schedule is not None


DEFAULTS = Policy(backoff_base=2, backoff_cap=300, backoff_jitter=0.5)


def policy_of(**options: Any) -> Policy:
    return task("x", **options)(lambda payload: None).task.policy(DEFAULTS)


def test_the_policy_is_the_configurations_unless_the_task_says_more() -> None:
    assert policy_of() == DEFAULTS
    assert policy_of(retry_on=(OSError,), give_up_on=KeyError).retry_on == (OSError,)
    assert policy_of(give_up_on=KeyError).give_up_on == (KeyError,)


def test_the_forms_of_backoff() -> None:
    doubling = policy_of(backoff=(3, 10))
    assert (doubling.backoff_base, doubling.backoff_cap, doubling.backoff_jitter) == (3, 10, 0.5)
    assert [policy_of(backoff=7).delay_after(n) for n in (1, 2, 50)] == [7, 7, 7]
    assert policy_of(backoff=timedelta(minutes=1)).delay_after(3) == 60
    assert policy_of(backoff=0).delay_after(3) == 0
    assert [policy_of(backoff=lambda attempt: attempt * 10).delay_after(n) for n in (1, 2)] == [10, 20]
    assert policy_of(backoff=lambda attempt: 1e300).delay_after(1) == timedelta(days=366).total_seconds()


def raising(attempt: int) -> float:
    raise RuntimeError("no idea")


@pytest.mark.parametrize("function", [raising, lambda n: -1, lambda n: float("nan"), lambda n: None, lambda n: "x"])
def test_a_backoff_that_fails_does_not_stop_the_retry(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    delay = policy_of(backoff=function).delay_after(2)
    assert 2 <= delay <= 4
    assert "backoff of task x" in caplog.text
