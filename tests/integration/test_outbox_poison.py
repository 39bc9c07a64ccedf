"""Rows that nobody of ours wrote, and buses that fail for one event: they end alone, and hold back nothing."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.events import Event
from jfast_sync.job import Job
from jfast_sync.tasks.registry import isolated
from tests.integration.outbox_support import opened, relay_of


class FragileBus(RecordingBus):
    """Raises for a whole call when one of its events has the data it cannot bear."""

    def send(self, publications):
        if any(publication.event.data.get("poison") for publication in publications):
            raise RuntimeError("cannot be encoded")
        return super().send(publications)


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request):
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def opened_app(dsn):
    with isolated(), opened(dsn, bus=FragileBus()) as (jf, queue):
        yield jf, queue


POISON = [
    ("job", '{"max_attempts": 1e400}', "sqlite"),
    ("job", '{"max_attempts": 1e300}', ""),
    ("job", '{"payload": [1]}', ""),
    ("job", '{"payload": {}, "priority": "high"}', ""),
    ("event", '{"id": "p", "type": "x", "occurred_at": "9999-12-31T23:59:59-14:00"}', ""),
    ("event", '{"id": "p", "type": "x", "occurred_at": 7}', ""),
    ("event", '{"id": "p", "type": "x", "trace": 5}', ""),
]


@pytest.mark.parametrize(("kind", "payload", "only"), POISON)
def test_a_row_that_cannot_be_read_ends_alone(opened_app, dsn, kind, payload, only):
    if not dsn.startswith(only):  # PostgreSQL stores no such number
        payload = json.dumps({"max_attempts": -1})
    jf, queue = opened_app
    with jf.session() as session:
        statement = "INSERT INTO jfast_outbox (id, kind, destination, payload) VALUES ('poison', :kind, 't', :payload)"
        if not dsn.startswith("sqlite"):
            statement = statement.replace(":payload", "CAST(:payload AS jsonb)")
        session.execute(text(statement), {"kind": kind, "payload": payload})
        jf.outbox.enqueue(session, Job(task="t", id="job"))
        jf.outbox.publish(session, "t", Event(type="x", id="event"))

    relay_of(jf).run_once()

    assert queue.given == ["job"]
    assert [sent.event.id for sent in jf.bus.sent] == ["event"]
    assert [(dead.message.id, dead.message.attempts) for dead in jf.messages.dead(10)] == [("poison", 1)]


def test_an_event_that_a_bus_raises_for_fails_alone(opened_app):
    jf, _ = opened_app
    with jf.session() as session:
        for number in range(3):
            for key in ("a", "b"):
                data = {"poison": (key, number) == ("a", 1)}
                jf.outbox.publish(session, "t", Event(type="x", id=f"{key}{number}", key=key, data=data))

    relay_of(jf).run_once()

    # What was written after the failed one waits behind it, in its key only.
    assert [sent.event.id for sent in jf.bus.sent] == ["a0", "b0", "b1", "b2"]
    stats = jf.messages.stats()
    assert (stats.pending, stats.failing, stats.last_error) == (2, 1, "RuntimeError: cannot be encoded")


def test_what_one_relay_holds_is_bounded_by_the_size_of_the_payloads(opened_app):
    jf, _ = opened_app
    with jf.session() as session:
        for number in range(12):  # they are stored at about a hundredth of their size
            jf.outbox.enqueue(session, Job(task="t", id=f"{number:02}", payload={"x": "a" * 1_000_000}))

    batches = []
    while count := len((leased := jf.messages.lease(100, 60.0)).messages):
        batches.append(count)
        jf.messages.mark(leased.token, sent=leased.messages)

    assert batches == [4, 4, 4]


def test_a_row_larger_than_the_bound_is_leased_alone(opened_app):
    jf, _ = opened_app
    with jf.session() as session:
        session.execute(
            text("INSERT INTO jfast_outbox (id, kind, destination, payload) VALUES (:id, 'job', 't', '{}')"),
            [{"id": "a"}, {"id": "b"}],
        )
        session.execute(text('UPDATE jfast_outbox SET payload = \'{"x": "' + "a" * 5_000_000 + "\"}'"))

    assert [len(jf.messages.lease(100, 60.0).messages) for _ in range(3)] == [1, 1, 0]
