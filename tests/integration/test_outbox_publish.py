"""Publishing in a transaction: what is refused leaves nothing, and ids of jobs and events do not collide."""

from __future__ import annotations

import logging
import threading

import pytest
from sqlalchemy import text

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.errors import PayloadError, UnavailableError, UnsupportedError
from jfast_sync.events import Event, subscribe
from jfast_sync.job import Job
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.registry import isolated
from tests.integration.outbox_support import opened, relay_of


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request):
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def opened_app(dsn):
    with isolated(), opened(dsn, bus=RecordingBus()) as (jf, queue):

        @subscribe("order.placed", name="mail.confirm")
        def confirm(event: Event) -> None: ...

        yield jf, queue


@pytest.fixture
def jf(opened_app):
    return opened_app[0]


@pytest.fixture
def queue(opened_app):
    return opened_app[1]


def relay_all(jf):
    relay = relay_of(jf)
    while relay.run_once():
        pass


def test_an_event_that_was_refused_can_be_published_again_in_the_same_transaction(jf, queue):
    # The data fits, the subscriber's job that carries it does not.
    fits = jf.config.queue.max_payload_bytes - 100
    with jf.session() as session:
        with pytest.raises(PayloadError):
            jf.outbox.publish(session, "orders", Event(type="order.placed", id="e-1", data={"x": "a" * fits}))
        assert session.execute(text("SELECT count(*) FROM jfast_inbox")).scalar() == 0
        jf.outbox.publish(session, "orders", Event(type="order.placed", id="e-1", data={"x": "shortened"}))
    relay_all(jf)

    assert len(queue.given) == 1
    assert [sent.event.id for sent in jf.bus.sent] == ["e-1"]


def test_a_session_elsewhere_is_refused_before_anything_is_claimed(jf, tmp_path):
    elsewhere = Database(f"sqlite:///{tmp_path}/other.db")
    with elsewhere.session() as session:
        columns = "consumer text, message_id text, processed_at integer, UNIQUE (consumer, message_id)"
        session.execute(text(f"CREATE TABLE jfast_inbox ({columns})"))
        with pytest.raises(UnsupportedError, match="another database"):
            jf.outbox.publish(session, "orders", Event(type="order.placed"))
        assert session.execute(text("SELECT count(*) FROM jfast_inbox")).scalar() == 0
    elsewhere.dispose()


@pytest.mark.parametrize("first", ["job", "event"])
def test_a_job_and_an_event_of_one_id_both_exist_once(jf, queue, first):
    def enqueue(session):
        assert jf.outbox.enqueue(session, Job(task="t", id="order-1", payload={"n": 1})) == "order-1"

    def publish(session, topic="t"):
        jf.outbox.publish(session, topic, Event(type="order.shipped", id="order-1"))

    steps = [enqueue, publish] if first == "job" else [publish, enqueue]
    for _ in range(2):
        with jf.session() as session:
            for step in steps:
                step(session)
        relay_all(jf)
    with jf.session() as session:
        publish(session, topic="another")
    relay_all(jf)

    assert queue.given == ["order-1"]
    assert queue.find("order-1").job.payload == {"n": 1}
    assert [(sent.topic, sent.event.id) for sent in jf.bus.sent] == [("t", "order-1"), ("another", "order-1")]


def test_an_enqueue_that_stored_nothing_is_logged(jf, queue, caplog):
    with caplog.at_level(logging.INFO, "jfast_sync"):
        for _ in range(2):
            with jf.session() as session:
                jf.outbox.enqueue_many(session, [Job(task="t", id="a")])
        for _ in range(2):
            jf.queue.enqueue_many([Job(task="t", id="b"), Job(task="t", id="c")])

    assert [record.message for record in caplog.records] == [
        "job a of task t was not stored: its id is there already",
        "2 of 2 jobs were not stored: their ids are there already",
    ]


def test_transactions_that_publish_two_events_in_opposite_orders(jf, queue, dsn):
    if dsn.startswith("sqlite"):  # one writer: the second transaction begins after the first
        publish_both(jf, ["1", "2"])
        publish_both(jf, ["2", "1"])
    else:
        met = threading.Barrier(2, timeout=20)
        outcomes: list[BaseException | None] = []

        def run(ids):
            outcomes.append(outcome(lambda: publish_both(jf, ids, between=met.wait)))

        threads = [threading.Thread(target=run, args=(ids,)) for ids in (["1", "2"], ["2", "1"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        refused = [error for error in outcomes if error is not None]
        assert len(outcomes) == 2 and len(refused) == 1
        assert isinstance(refused[0], UnavailableError) and "may be tried again" in str(refused[0])
        publish_both(jf, ["2", "1"])  # the one that was refused
    relay_all(jf)

    assert len(queue.given) == 2
    assert sorted(sent.event.id for sent in jf.bus.sent) == ["1", "2"]


def test_events_of_one_key_go_as_they_were_committed_where_transactions_overlap(jf, queue, dsn):
    first, second = (Event(type="order.placed", id=one, key="k") for one in ("first", "second"))
    if dsn.startswith("sqlite"):  # one writer: no two transactions that have written overlap
        for event in (first, second):
            with jf.session() as session:
                jf.outbox.publish(session, "orders", event)
            relay_all(jf)
        expected = ["first", "second"]
    else:
        with jf.session() as session:
            jf.outbox.publish(session, "orders", first)
            overtaking = Database(dsn)
            with overtaking.session() as other:
                jf.outbox.publish(other, "orders", second)
            overtaking.dispose()
            relay_all(jf)
        relay_all(jf)
        expected = ["second", "first"]

    assert [sent.event.id for sent in jf.bus.sent] == expected


def publish_both(jf, ids, between=lambda: None):
    with jf.session() as session:
        jf.outbox.publish(session, "orders", Event(type="order.placed", id=ids[0]))
        between()
        jf.outbox.publish(session, "orders", Event(type="order.placed", id=ids[1]))


def outcome(work):
    try:
        work()
    except Exception as exc:
        return exc
    return None
