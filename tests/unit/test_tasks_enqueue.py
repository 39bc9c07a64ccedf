"""`.enqueue` of a task: which job it builds, and where it goes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy.orm import Session

from jfast_sync import context
from jfast_sync.errors import ConfigError, PayloadError
from jfast_sync.job import Job
from jfast_sync.tasks import task
from jfast_sync.tasks.declarations import declarations
from jfast_sync.tasks.registry import Registry, isolated


class RecordingApp:
    """Stands where the app stands; keeps what it is asked to enqueue."""

    def __init__(self) -> None:
        self.stored: list[tuple[Any, Job]] = []
        self.queue = self.Queue(self)
        self.outbox = self.Outbox(self)

    class Queue:
        def __init__(self, app: RecordingApp) -> None:
            self.app = app

        def enqueue(self, job: Job) -> str:
            self.app.stored.append((None, job))
            return job.id

    class Outbox:
        def __init__(self, app: RecordingApp) -> None:
            self.app = app

        def enqueue(self, session: Any, job: Job) -> str:
            self.app.stored.append((session, job))
            return job.id


@dataclass
class Mail:
    to: str
    at: datetime | None = None


@pytest.fixture
def app() -> Iterator[RecordingApp]:
    recording = RecordingApp()
    with isolated(), context.bind_app(cast("Any", recording)):
        yield recording


def test_the_options_of_the_task_and_then_of_the_call(app: RecordingApp) -> None:
    @task("report.make", queue="slow", priority=3, max_attempts=9)
    def make(payload: dict) -> None: ...

    first = make.enqueue({"a": 1})
    second = make.enqueue({"a": 2}, queue="fast", priority=0, id="mine", max_attempts=1, tenant_id="t", request_id="r")
    (_, one), (_, two) = app.stored
    assert (one.id, one.task, one.payload, one.queue, one.priority) == (first, "report.make", {"a": 1}, "slow", 3)
    assert one.max_attempts is None  # the task's own is filled in with the configuration's, in one place
    assert second == two.id == "mine"
    assert (two.queue, two.priority, two.max_attempts, two.tenant_id, two.request_id) == ("fast", 0, 1, "t", "r")
    assert uuid.UUID(first).version == 7


def test_without_a_payload_and_with_a_session(app: RecordingApp) -> None:
    @task("ping")
    def ping() -> None: ...

    session = Session()
    ping.enqueue(session=session)
    assert app.stored[0][0] is session
    assert app.stored[0][1].payload == {}


def test_the_origin_of_the_caller_is_inherited(app: RecordingApp) -> None:
    @task("ping")
    def ping() -> None: ...

    with context.bind(context.Origin(tenant_id="acme", request_id="r1", trace={"traceparent": "x"})):
        ping.enqueue()
    job = app.stored[0][1]
    assert (job.tenant_id, job.request_id, job.trace) == ("acme", "r1", {"traceparent": "x"})


def test_delay_and_at(app: RecordingApp) -> None:
    @task("ping")
    def ping() -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert ping.job(delay=1.5).delay == timedelta(seconds=1.5)
    assert ping.job(delay=timedelta(hours=1)).delay == timedelta(hours=1)
    assert ping.job(at=at).available_at == at
    assert app.stored == []
    refused: list[dict[str, Any]] = [
        {"delay": 1, "at": at},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": 1e300},
        {"delay": "5"},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"at": "tomorrow"},
        {"id": ""},
        {"priority": 10},
        {"max_attempts": 0},
        {"queue": 5},
    ]
    for options in refused:
        with pytest.raises(PayloadError):
            ping.enqueue(**options)
    assert app.stored == []


def test_a_typed_payload_is_checked_before_anything_is_stored(app: RecordingApp) -> None:
    @task("mail.send")
    def send(payload: Mail) -> None: ...

    send.enqueue(Mail("a", datetime(2026, 1, 1, tzinfo=UTC)))
    send.enqueue({"to": "b"})
    assert [job.payload for _, job in app.stored] == [{"to": "a", "at": "2026-01-01T00:00:00+00:00"}, {"to": "b"}]
    for payload, message in [
        ({"tu": "b"}, r"payload\.to: missing"),
        ({"to": "b", "cc": "c"}, r"payload\.cc: Mail has no such field"),
        (Mail(cast("str", 5)), r"payload\.to: expected a text, got a whole number"),
        (None, r"payload\.to: missing"),
        ([], "payload must be a JSON object"),
    ]:
        with pytest.raises(PayloadError, match=message):
            send.enqueue(payload)
    assert len(app.stored) == 2


def test_an_apps_own_task_goes_to_that_app(app: RecordingApp) -> None:
    other = RecordingApp()
    registry = Registry(declarations(), app=lambda: other)

    @registry.task("own")
    def own() -> None: ...

    own.enqueue()
    assert (len(app.stored), len(other.stored)) == (0, 1)


def test_without_an_app_the_message_says_how_to_open_one() -> None:
    with isolated():

        @task("ping")
        def ping() -> None: ...

        with pytest.raises(ConfigError, match=r"connect\(\)"):
            ping.enqueue()
