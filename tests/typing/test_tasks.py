# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-calls, disallow-untyped-decorators
# mypy: disallow-any-generics, warn-return-any, warn-unreachable
"""What a type checker knows of a user's tasks.

mypy reads this file as strictly as a user may have it. A line that it has to refuse says so in a `type: ignore` with
the error's code, and mypy refuses a comment that is not needed. pytest runs the file as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict, assert_type

import pytest
from sqlalchemy import text
from sqlalchemy.engine import ScalarResult
from sqlalchemy.orm import Session

from jfast_sync import JFast, Job, current_tenant_id
from jfast_sync.errors import PayloadError
from jfast_sync.job import RunningJob
from jfast_sync.tasks import Cancel, Retry, Snooze, TaskContext, TaskSession, task
from jfast_sync.tasks.registry import isolated
from jfast_sync.testing import Drained, assert_enqueued, drain, enqueued, sqlite_app


@dataclass
class Mail:
    to: str


class Order(TypedDict):
    number: int


@pytest.fixture
def jf() -> Iterator[JFast]:
    with isolated(), sqlite_app() as app:
        yield app


def test_a_declared_task_keeps_its_signature(jf: JFast) -> None:
    @task("double")
    def double(payload: dict[str, int]) -> int:
        return payload["n"] * 2

    assert_type(double({"n": 2}), int)
    assert double(payload={"n": 3}) == 6
    with pytest.raises(TypeError):
        double()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        double({"n": 2}, times=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        double(7)  # type: ignore[arg-type]


def test_a_handlers_session_is_a_session(jf: JFast) -> None:
    @task("read")
    def read(payload: Order, session: TaskSession) -> None:
        assert_type(session, Session)
        assert_type(payload["number"], int)
        assert_type(session.scalars(text("SELECT 1")), ScalarResult[object])  # type: ignore[assert-type]
        session.flush()
        with pytest.raises(AttributeError):
            session.comit()  # type: ignore[attr-defined]

    read.enqueue({"number": 1})
    assert drain(jf) == Drained(done=1)


def test_a_handlers_context_is_the_app(jf: JFast) -> None:
    @task("look")
    def look(ctx: TaskContext, job: Job, running: RunningJob) -> None:
        assert_type(ctx, JFast)
        assert_type(ctx.stopping, bool)
        assert_type(job.attempts, int)
        assert_type(running.cancelled, bool)
        answer: int = ctx.require("answer")
        assert answer == 42
        with pytest.raises(TypeError):
            ctx.require()  # type: ignore[call-arg]

    jf.provide("answer", 42)
    look.enqueue()
    assert drain(jf) == Drained(done=1)


def test_enqueueing_returns_the_id(jf: JFast) -> None:
    @task("mail", queue="mail", every=None)
    def mail(payload: Mail) -> None: ...

    assert_type(mail.enqueue(Mail("ada")), str)
    assert_type(mail.job(Mail("grace"), delay=timedelta(minutes=1)), Job)
    with jf.session() as session:
        assert_type(session, Session)
        assert_type(mail.enqueue(Mail("alan"), session, delay=1.5), str)
    with pytest.raises(TypeError):
        mail.enqueue(Mail("eve"), deley=5)  # type: ignore[call-arg]
    with pytest.raises(PayloadError):
        mail.enqueue(Mail("eve"), delay="5")  # type: ignore[arg-type]
    assert_type(enqueued(jf, mail), list[Job])
    assert_type(assert_enqueued(jf, mail, payload=Mail("ada")), Job)


def test_a_misspelled_option_is_an_error(jf: JFast) -> None:
    with pytest.raises(TypeError):
        task("a", max_atempts=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        jf.tasks.task("b", idempotent=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Job(task="c", priorty=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Job("c")  # type: ignore[call-arg]


def test_what_a_handler_may_raise(jf: JFast) -> None:
    for steering in (Retry("again", delay=1), Cancel("enough"), Snooze(timedelta(hours=1))):
        assert isinstance(steering, Exception)
    with pytest.raises(TypeError):
        Cancel()  # type: ignore[call-arg]


def test_names_of_the_origin(jf: JFast) -> None:
    assert_type(current_tenant_id(), str | None)
    with pytest.raises(AttributeError):
        current_tenant_id().upper()  # type: ignore[union-attr]
