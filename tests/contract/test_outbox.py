"""A job or an event written through a session, on every backend: it exists if and only if the transaction committed.

Where the queue is not in a database, the outbox is in a SQLite file and a relay brings what was committed to the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.event import subscriber_job_id
from jfast_sync.events import Event, subscribe
from jfast_sync.inbox import claim_once
from jfast_sync.ports import SharesTransaction
from jfast_sync.tasks.registry import Registry, isolated
from tests.clock import FakeClock
from tests.contract.backends import Backend
from tests.contract.steps import a_job, claim, ids, seconds, take, take_one


class Rollback(Exception):
    """Raised by a test to roll a session back."""


class Outbox:
    """An app whose queue is the backend's, and what a relay of it brings."""

    def __init__(self, jf: JFast, backend: Backend) -> None:
        self.jf, self.backend = jf, backend
        self.queue: Any = jf.queue.backend
        self.clock = FakeClock()
        assert jf.messages is not None
        if not jf.messages.postgres:
            jf.messages._clock = self.clock

    @contextmanager
    def session(self) -> Iterator[Any]:
        with self.jf.session() as session:
            yield session

    def enqueue(self, session: Any, **fields: Any) -> None:
        self.jf.outbox.enqueue(session, a_job(**fields))

    def publish(self, event: Event) -> None:
        with self.session() as session:
            self.jf.outbox.publish(session, "receipts", event)

    def pass_time(self, passed: float) -> None:
        self.clock.advance(passed)
        self.backend.pass_time(passed)

    def brought(self, count: int) -> list[str]:
        """Let a relay bring what is due; return the ids in the queue, which are so many."""
        while self.jf.relaying.run_once():
            pass
        found = ids(take(self.queue, count))
        assert claim(self.queue) == []
        return sorted(found)


@pytest.fixture
def outbox(backend: Backend, queue: Any, tmp_path: Path) -> Iterator[Outbox]:
    dsn = backend.dsn if isinstance(queue, SharesTransaction) else f"sqlite:///{tmp_path}/outbox.db"
    config = load_config(overrides={"database": {"dsn": dsn}})
    with isolated(), JFast(config, tasks=Registry(), queue=queue) as jf:
        jf.setup()
        yield Outbox(jf, backend)


def test_a_commit_makes_one_job_of_it(outbox: Outbox) -> None:
    with outbox.session() as session:
        outbox.enqueue(session, id="x", payload={"n": 1}, tenant_id="acme", request_id="r-1", queue="mail", priority=3)
        assert claim(outbox.queue) == []
    outbox.jf.relaying.run_once()
    outbox.jf.relaying.run_once()

    job = take_one(outbox.queue).job

    assert (job.id, job.task, job.payload, job.queue, job.priority) == ("x", "t", {"n": 1}, "mail", 3)
    assert (job.tenant_id, job.request_id, job.attempts, job.max_attempts) == ("acme", "r-1", 1, 3)
    assert claim(outbox.queue) == []


def test_a_rollback_makes_none(outbox: Outbox) -> None:
    with pytest.raises(Rollback), outbox.session() as session:
        outbox.enqueue(session, id="x")
        raise Rollback
    assert outbox.brought(0) == []


def test_a_savepoint_rolled_back_takes_its_own_jobs(outbox: Outbox) -> None:
    with outbox.session() as session:
        outbox.enqueue(session, id="before")
        nested = session.begin_nested()
        outbox.enqueue(session, id="within")
        nested.rollback()
        with session.begin_nested():
            outbox.enqueue(session, id="released")
    assert outbox.brought(2) == ["before", "released"]


def test_an_id_twice_is_one_job(outbox: Outbox) -> None:
    with outbox.session() as session:
        outbox.enqueue(session, id="x")
        outbox.enqueue(session, id="x")
    outbox.jf.relaying.run_once()
    with outbox.session() as session:
        outbox.enqueue(session, id="x")
        outbox.enqueue(session, id="y")
    assert outbox.brought(2) == ["x", "y"]


def test_a_delay_is_kept(outbox: Outbox) -> None:
    with outbox.session() as session:
        outbox.enqueue(session, id="later", delay=seconds(1000))
        outbox.enqueue(session, id="now")
    assert outbox.brought(1) == ["now"]
    outbox.pass_time(900)
    assert outbox.brought(0) == []
    outbox.pass_time(110)
    assert outbox.brought(1) == ["later"]


def test_every_subscriber_gets_one_job_per_event(outbox: Outbox) -> None:
    @subscribe("receipt.registered", name="alert.check")
    def check(event: Event) -> None: ...

    @subscribe("receipt.registered", name="stock.book", max_attempts=9)
    def book(event: Event) -> None: ...

    @subscribe("another.type", name="never.called")
    def never(event: Event) -> None: ...

    event = Event(type="receipt.registered", data={"n": 1}, tenant_id="acme")
    with pytest.raises(Rollback), outbox.session() as session:
        outbox.jf.outbox.publish(session, "receipts", event)
        raise Rollback
    assert outbox.brought(0) == []

    outbox.publish(event)
    outbox.publish(event)
    names = ("receipt.registered->alert.check", "receipt.registered->stock.book")
    assert outbox.brought(2) == sorted(subscriber_job_id(event.id, name) for name in names)
    outbox.publish(event)
    assert outbox.brought(0) == []


def test_a_claim_in_the_inbox_goes_with_its_transaction(outbox: Outbox) -> None:
    with pytest.raises(Rollback), outbox.session() as session:
        assert claim_once(session, "m-1", consumer="c") is True
        outbox.enqueue(session, id="x")
        raise Rollback
    for expected in (True, False):
        with outbox.session() as session:
            fresh = claim_once(session, "m-1", consumer="c")
            assert fresh is expected
            if fresh:
                outbox.enqueue(session, id="x")
    assert outbox.brought(1) == ["x"]
