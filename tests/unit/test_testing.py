"""What applications' tests are given: apps of their own, jobs run in place, expectations, a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jfast_sync import JFast, Job, context, current_job, current_tenant_id
from jfast_sync.errors import ConfigError, DeclarationError, PayloadError, UnknownTaskError, UnsupportedError
from jfast_sync.tasks import Cancel, Retry, Snooze, TaskContext, TaskSession, task
from jfast_sync.tasks.registry import isolated
from jfast_sync.testing import (
    Drained,
    FakeClock,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    enqueued,
    inline,
    memory_app,
    sqlite_app,
)


@pytest.fixture(autouse=True)
def _no_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with isolated():
        yield


@pytest.fixture(params=[memory_app, sqlite_app])
def app(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[JFast]]:
    return request.param


class Broken(Exception):
    """What a handler raises here."""


# --- apps ------------------------------------------------------------------------------------------------------


def test_an_app_is_current_inside_its_block_and_leaves_nothing(app: Any) -> None:
    threads = threading.active_count()
    with app() as jf:
        assert context.current_app() is jf
        jf.queue.enqueue(Job(task="any"))
        assert threading.active_count() == threads
    with pytest.raises(ConfigError):
        context.current_app()


def test_each_app_starts_empty(app: Any) -> None:
    for _ in range(2):
        with app() as jf:
            assert enqueued(jf) == []
            jf.queue.enqueue(Job(task="any"))


def test_apps_may_be_nested(app: Any) -> None:
    with app() as outer, app() as inner:
        assert context.current_app() is inner
        inner.queue.enqueue(Job(task="any"))
        assert enqueued(outer) == []


def test_the_projects_settings_and_tasks_are_read_but_not_its_servers(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jfast.toml").write_text(
        '[app]\nenv = "prod"\n[plugin.database]\ndsn = "postgresql://nowhere/none"\npgbouncer = true\nrls = true\n'
        '[plugin.queue]\nbackend = "postgres"\nmax_attempts = 7\nclaim = "registered"\n'
    )
    (tmp_path / "modules" / "shop").mkdir(parents=True)
    (tmp_path / "modules" / "shop" / "tasks.py").write_text(
        'from jfast_sync.tasks import task\n@task("shop.pack")\ndef pack(payload): ...\n'
    )
    monkeypatch.setenv("JFAST_QUEUE_MAX_ATTEMPTS", "9")
    with app(tmp_path) as jf:
        assert jf.tasks.names() == ["shop.pack"]
        jf.queue.enqueue(Job(task="shop.pack"))
        assert assert_enqueued(jf, "shop.pack").max_attempts == 7


def test_overrides_win_over_the_file(app: Any) -> None:
    Path("jfast.toml").write_text("[plugin.queue]\nmax_attempts = 7\n")
    with app(overrides={"queue": {"max_attempts": 2}}) as jf:
        jf.queue.enqueue(Job(task="any"))
        assert assert_enqueued(jf, "any").max_attempts == 2


def test_memory_has_no_database() -> None:
    with memory_app() as jf:
        with pytest.raises(ConfigError, match="no database is configured"), jf.session():
            pass
        with pytest.raises(UnsupportedError):
            jf.outbox.enqueue(Session(), Job(task="any"))

    @task("needs.session")
    def handler(session: TaskSession) -> None: ...

    with pytest.raises(DeclarationError, match=r"needs\.session"), memory_app():
        pass


# --- drain -----------------------------------------------------------------------------------------------------


def test_what_is_due_runs_in_this_thread_in_order(app: Any) -> None:
    ran: list[tuple[Any, int]] = []

    @task("note")
    def note(payload: dict) -> None:
        ran.append((payload["n"], threading.get_ident()))

    with app() as jf:
        note.enqueue({"n": 1})
        note.enqueue({"n": 2}, priority=5)
        note.enqueue({"n": 3}, delay=60)
        assert drain(jf) == Drained(done=2)
        assert ran == [(2, threading.get_ident()), (1, threading.get_ident())]
        assert [job.payload for job in enqueued(jf)] == [{"n": 3}]


def test_jobs_that_jobs_enqueue_are_run_too(app: Any) -> None:
    @task("count")
    def count(payload: dict, jf: TaskContext) -> None:
        if payload["n"]:
            jf.queue.enqueue(Job(task="count", payload={"n": payload["n"] - 1}))

    with app() as jf:
        count.enqueue({"n": 4})
        assert drain(jf) == Drained(done=5)


def test_a_handler_gets_what_it_gets_from_a_worker(app: Any) -> None:
    seen: list[Any] = []

    @task("look")
    def look(payload: dict, ctx: TaskContext, job: Job) -> None:
        seen.append((ctx.require("thing"), job.attempts, current_job().id, current_tenant_id()))

    with app() as jf:
        jf.provide("thing", 42)
        look.enqueue(id="one", tenant_id="acme")
        drain(jf)
    assert seen == [(42, 1, "one", "acme")]
    assert current_tenant_id() is None


def test_a_failure_is_written_and_raised(app: Any) -> None:
    @task("fail", max_attempts=2)
    def fail() -> None:
        raise Broken("no")

    clock = FakeClock()
    with app(clock=clock) as jf:
        fail.enqueue(id="one")
        with pytest.raises(Broken):
            drain(jf)
        waiting = assert_enqueued(jf, fail, attempts=1, error="Broken: no")
        assert waiting.available_at == clock.now() + timedelta(seconds=2)
        assert drain(jf) == Drained()  # the retry is not due
        clock.advance(2)
        assert drain(jf, raise_errors=False) == Drained(dead=1)
        dead = jf.queue.dead_letters.find_dead("one")
        assert dead is not None
        assert dead.job.error == "Broken: no"
        assert "raise Broken" in (dead.traceback or "")


def test_without_raising_everything_due_is_run(app: Any) -> None:
    @task("fail", backoff=0)
    def fail() -> None:
        raise Broken

    @task("well", priority=-1)
    def well() -> None: ...

    with app() as jf:
        fail.enqueue()
        well.enqueue()
        assert drain(jf, raise_errors=False) == Drained(done=1, retried=2, dead=1)
        stats = jf.queue.stats()
        assert (stats.done_by_task, stats.failed_by_task) == ({"well": 1}, {"fail": 3})


def test_what_steers_a_job_is_never_raised(app: Any) -> None:
    @task("steer")
    def steer(payload: dict) -> None:
        raise {"retry": Retry("later"), "snooze": Snooze(60), "cancel": Cancel("enough")}[payload["how"]]

    with app() as jf:
        for how in ("retry", "snooze", "cancel"):
            steer.enqueue({"how": how})
        assert drain(jf) == Drained(retried=2, dead=1)


def test_an_unknown_task_is_raised(app: Any) -> None:
    with app() as jf:
        jf.queue.enqueue(Job(task="nobody.knows"))
        with pytest.raises(UnknownTaskError, match=r"nobody\.knows"):
            drain(jf)
        assert jf.queue.stats().dead == 1


def test_jobs_without_end_fail_the_test(app: Any) -> None:
    @task("again")
    def again() -> None:
        again.enqueue()

    with app() as jf:
        again.enqueue()
        with pytest.raises(AssertionError, match="5 jobs were run and more are due"):
            drain(jf, max_jobs=5)


def test_exactly_max_jobs_is_not_too_many(app: Any) -> None:
    @task("note")
    def note() -> None: ...

    with app() as jf:
        for _ in range(3):
            note.enqueue()
        assert drain(jf, max_jobs=3) == Drained(done=3)


def test_observers_are_told(app: Any) -> None:
    told: list[str] = []

    @task("fail", max_attempts=1)
    def fail() -> None:
        raise Broken

    with app() as jf:
        jf.on_start(lambda event: told.append("start"))
        jf.on_failure(lambda event: told.append(type(event.exception).__name__))
        jf.on_dead(lambda event: told.append("dead"))
        fail.enqueue()
        drain(jf, raise_errors=False)
    assert told == ["start", "Broken", "dead"]


def test_sessions_and_keys_are_what_they_are_in_production() -> None:
    @task("write", idempotent_on=lambda payload: payload["key"], max_attempts=1)
    def write(payload: dict, session: TaskSession) -> None:
        session.execute(text("INSERT INTO notes VALUES (:key)"), {"key": payload["key"]})
        if payload.get("fail"):
            raise Broken

    with sqlite_app() as jf:
        with jf.session() as session:
            session.execute(text("CREATE TABLE notes (key text)"))
        write.enqueue({"key": "a", "fail": True})
        assert drain(jf, raise_errors=False) == Drained(dead=1)
        for key in ("a", "a", "b"):
            write.enqueue({"key": key})
        assert drain(jf) == Drained(done=2, skipped=1)
        with jf.session() as session:
            assert session.execute(text("SELECT key FROM notes ORDER BY key")).scalars().all() == ["a", "b"]


# --- inline ----------------------------------------------------------------------------------------------------


def test_inline_runs_what_is_enqueued_at_once(app: Any) -> None:
    ran: list[int] = []

    @task("note")
    def note(payload: dict) -> None:
        ran.append(payload["n"])

    with app() as jf:
        note.enqueue({"n": 0})
        with inline(jf):
            note.enqueue({"n": 1})
            assert ran == [0, 1]
            jf.queue.enqueue_many([note.job({"n": 2}), note.job({"n": 3})])
            assert ran == [0, 1, 2, 3]
            note.enqueue({"n": 4}, delay=60)
        note.enqueue({"n": 5})
        assert ran == [0, 1, 2, 3]


def test_inline_raises_what_the_handler_raised(app: Any) -> None:
    @task("fail")
    def fail() -> None:
        raise Broken

    with app() as jf, inline(jf), pytest.raises(Broken):
        fail.enqueue()


def test_inline_runs_a_jobs_own_jobs_after_it(app: Any) -> None:
    order: list[str] = []

    @task("first")
    def first() -> None:
        second.enqueue()
        order.append("first")

    @task("second")
    def second() -> None:
        order.append("second")

    with app() as jf, inline(jf):
        first.enqueue()
        assert order == ["first", "second"]


def test_inline_waits_for_the_sessions_commit() -> None:
    ran: list[str] = []

    @task("outer")
    def outer() -> None:
        inner.enqueue()
        ran.append("outer")

    @task("inner")
    def inner(session: TaskSession) -> None:
        ran.append("inner")

    with sqlite_app() as jf, inline(jf):
        with jf.session() as session:
            outer.enqueue(session=session)
            outer.enqueue(session=session)
            assert ran == []
        assert ran == ["outer", "outer", "inner", "inner"]
        with pytest.raises(Broken), jf.session() as session:
            outer.enqueue(session=session)
            raise Broken
        assert len(ran) == 4


def test_inline_raises_out_of_the_commit() -> None:
    @task("fail")
    def fail() -> None:
        raise Broken

    with sqlite_app() as jf, inline(jf), pytest.raises(Broken), jf.session() as session:
        fail.enqueue(session=session)


# --- expectations ----------------------------------------------------------------------------------------------


@dataclass
class Mail:
    to: str


def test_a_waiting_job_is_found_by_name_function_payload_and_fields(app: Any) -> None:
    @task("mail.send", queue="mail")
    def send(payload: Mail) -> None: ...

    with app() as jf:
        send.enqueue(Mail("ada"), tenant_id="acme")
        send.enqueue(Mail("grace"), delay=60, priority=3)
        assert assert_enqueued(jf, send, payload=Mail("ada")).tenant_id == "acme"
        assert assert_enqueued(jf, "mail.send", payload={"to": "grace"}, queue="mail", priority=3).priority == 3
        assert assert_enqueued(jf, send, times=2).payload == {"to": "ada"}
        assert [job.payload["to"] for job in enqueued(jf, send)] == ["ada", "grace"]
        assert_not_enqueued(jf, send, payload={"to": "alan"})
        assert_not_enqueued(jf, "mail.other")


def test_a_missing_job_shows_what_waits(app: Any) -> None:
    with app() as jf:
        with pytest.raises(AssertionError, match=r"expected 1 waiting jobs of 'a', found 0\.\nNo job waits\."):
            assert_enqueued(jf, "a")
        jf.queue.enqueue(Job(task="b", payload={"n": 1}))
        with pytest.raises(AssertionError, match=r"found 0\.\nWaiting:\n  b \{'n': 1\} queue='default' priority=0"):
            assert_enqueued(jf, "a")
        with pytest.raises(AssertionError, match=r"jobs of 'b' with payload=\{'n': 2\}, queue='x', found 0"):
            assert_enqueued(jf, "b", payload={"n": 2}, queue="x")
        with pytest.raises(AssertionError, match=r"expected no waiting jobs of 'b', found 1"):
            assert_not_enqueued(jf, "b")
        with pytest.raises(AssertionError, match="expected no waiting jobs, found 1"):
            assert_not_enqueued(jf)
        jf.queue.enqueue_many(Job(task="b") for _ in range(30))
        with pytest.raises(AssertionError, match=r"(?s)found 31.*and 11 more"):
            assert_not_enqueued(jf)


def test_a_wrong_question_is_refused(app: Any) -> None:
    with app() as jf:
        with pytest.raises(TypeError, match="a job has no quue; it has task, payload"):
            assert_enqueued(jf, "a", quue="x")
        with pytest.raises(ValueError, match="use assert_not_enqueued"):
            assert_enqueued(jf, "a", times=0)
        with pytest.raises(PayloadError):
            assert_enqueued(jf, "a", payload={"x": float("nan")})


# --- the clock -------------------------------------------------------------------------------------------------


def test_the_clock_stands_until_it_is_moved(app: Any) -> None:
    clock = FakeClock(datetime(2027, 5, 1, 2, tzinfo=UTC))
    assert clock.now() == clock.now() == datetime(2027, 5, 1, 2, tzinfo=UTC)
    assert clock.advance(1.5) == datetime(2027, 5, 1, 2, 0, 1, 500_000, tzinfo=UTC)
    assert clock.advance(timedelta(hours=-1)) == datetime(2027, 5, 1, 1, 0, 1, 500_000, tzinfo=UTC)


def test_the_clock_decides_when_jobs_are_due(app: Any) -> None:
    @task("later")
    def later() -> None: ...

    clock = FakeClock()
    with app(clock=clock) as jf:
        later.enqueue(delay=3600)
        later.enqueue(at=clock.now() + timedelta(hours=2))
        clock.advance(3599)
        assert drain(jf) == Drained()
        clock.advance(1)
        assert drain(jf) == Drained(done=1)
        clock.advance(timedelta(hours=1))
        assert drain(jf) == Drained(done=1)
