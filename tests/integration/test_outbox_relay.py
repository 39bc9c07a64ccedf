"""The outbox and its relay on both dialects, with a queue that is not in the database."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.errors import PayloadError, UnavailableError, UndeliverableEvent, UnsupportedError
from jfast_sync.event import subscriber_job_id
from jfast_sync.events import Event, subscribe
from jfast_sync.job import Job
from jfast_sync.loop import Deadline
from jfast_sync.sql.engine import Database
from jfast_sync.tasks import TaskSession
from jfast_sync.tasks.registry import isolated
from jfast_sync.testing import drain, inline
from tests.integration.outbox_support import opened, relay_of
from tests.waiting import eventually


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request):
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def bus():
    return RecordingBus()


@pytest.fixture
def opened_app(dsn, bus):
    with isolated(), opened(dsn, bus=bus, max_attempts=3) as (jf, queue):
        yield jf, queue


@pytest.fixture
def jf(opened_app):
    return opened_app[0]


@pytest.fixture
def queue(opened_app):
    return opened_app[1]


def write(jf, *jobs):
    with jf.session() as session:
        return jf.outbox.enqueue_many(session, jobs)


def publish(jf, *events, topic="orders"):
    with jf.session() as session:
        for event in events:
            jf.outbox.publish(session, topic, event)


def make_due(jf):
    with jf.session() as session:
        postgres = session.get_bind().dialect.name == "postgresql"
        now = "now()" if postgres else "0"
        session.execute(text(f"UPDATE jfast_outbox SET available_at = {now} WHERE status = 'pending'"))


# --- jobs


def test_a_job_arrives_as_it_was_written(jf, queue):
    job = Job(task="t", payload={"n": 1}, queue="mail", priority=3, tenant_id="t-1", request_id="r-1", max_attempts=7)
    write(jf, job)
    assert queue.given == []

    assert relay_of(jf).run_once() == 1

    (row,) = queue.jobs()
    fields = ("id", "task", "payload", "queue", "priority", "tenant_id", "request_id", "max_attempts")
    assert {name: getattr(row.job, name) for name in fields} == {name: getattr(job, name) for name in fields}
    assert jf.messages.stats().published == 1


def test_a_rollback_leaves_nothing(jf, queue):
    with pytest.raises(ZeroDivisionError), jf.session() as session:
        jf.outbox.enqueue(session, Job(task="t"))
        raise ZeroDivisionError

    assert relay_of(jf).run_once() == 0
    assert jf.messages.stats().pending == 0


def test_a_commit_wakes_the_relay_and_a_savepoint_does_not(dsn):
    with opened(dsn, interval_seconds=600) as (jf, queue):
        relay = jf.relaying.start()
        assert relay is not None
        with jf.session() as session:
            with session.begin_nested():
                jf.outbox.enqueue(session, Job(task="t", id="one"))
            assert queue.given == []
        eventually(lambda: queue.given, 5, until=lambda given: given == ["one"])


def test_a_commit_where_no_relay_runs_wakes_one_elsewhere(dsn):
    with opened(dsn, interval_seconds=600) as (there, queue), opened(dsn) as (here, _):
        there.relaying.start()
        sent = set()

        def arrived():  # what was written before anybody listened is found by the next look
            sent.update(write(here, Job(task="t")))
            return set(queue.given) & sent

        eventually(arrived, 10, interval=0.2)
        began = time.monotonic()
        (last,) = write(here, Job(task="t"))
        eventually(lambda: last in queue.given, 5)
        assert time.monotonic() - began < 2


def test_a_delayed_job_is_never_early(jf, queue):
    write(jf, Job(task="t", delay=timedelta(hours=1)), Job(task="t", id="now"))

    relay_of(jf).run_once()

    assert queue.given == ["now"]
    assert jf.messages.stats().oldest_pending_seconds == 0


def test_an_id_is_written_once(jf, queue):
    for _ in range(2):
        write(jf, Job(task="t", id="same"), Job(task="t", id="same"))
        relay_of(jf).run_once()

    assert queue.given == ["same"]


def test_a_late_commit_is_not_skipped(jf, queue, dsn):
    if dsn.startswith("sqlite"):
        write(jf, Job(task="t", id="early"))
        relay_of(jf).run_once()
        write(jf, Job(task="t", id="late"))
    else:
        with jf.session() as session:
            jf.outbox.enqueue(session, Job(task="t", id="late"))
            other = Database(dsn)
            with other.session() as overtaking:
                jf.outbox.enqueue(overtaking, Job(task="t", id="early"))
            other.dispose()
            relay_of(jf).run_once()
            assert queue.given == ["early"]
    relay_of(jf).run_once()

    assert queue.given == ["early", "late"]


def test_a_session_elsewhere_is_refused(jf, tmp_path):
    other = Database(f"sqlite:///{tmp_path}/other.db")
    with other.session() as session, pytest.raises(UnsupportedError, match="another database"):
        jf.outbox.enqueue(session, Job(task="t"))
    other.dispose()


# --- failures


def test_what_fails_is_retried_and_then_dead_and_holds_up_nobody(jf, queue, caplog):
    queue.refuse = lambda jobs: RuntimeError("broken") if any(job.task == "bad" for job in jobs) else None
    write(jf, *[Job(task="bad", id=f"bad-{n}") for n in range(3)], Job(task="good", id="good"))
    relay = relay_of(jf, batch_size=3, max_attempts=2)

    with caplog.at_level(logging.WARNING, "jfast_sync.outbox"):
        relay.run_once()
        relay.run_once()
    assert queue.given == ["good"]
    (told,) = [record.message for record in caplog.records]  # one line for one cause
    assert told.startswith("3 outbox messages not sent, among them job bad-") and "RuntimeError: broken" in told
    stats = jf.messages.stats()
    assert (stats.pending, stats.failing, stats.last_error) == (3, 3, "RuntimeError: broken")
    assert "RuntimeError: broken" in jf.checks()["outbox"]().detail

    make_due(jf)
    relay.run_once()
    dead = jf.messages.dead(10)
    assert {one.message.id for one in dead} == {"bad-0", "bad-1", "bad-2"}
    assert all(one.message.attempts == 2 and one.error == "RuntimeError: broken" for one in dead)
    assert jf.checks()["outbox"]().status == "degraded"

    queue.refuse = lambda _jobs: None
    assert jf.messages.revive(["bad-1", "unknown"]) == ["bad-1"]
    assert jf.messages.discard(["bad-0"]) == ["bad-0"]
    assert jf.messages.revive_all() == 1
    relay.run_once()
    assert sorted(queue.given) == ["bad-1", "bad-2", "good"]
    assert jf.checks()["outbox"]().healthy


def test_a_server_that_is_away_is_waited_for(jf, queue):
    queue.refuse = lambda _jobs: UnavailableError("no route")
    ids = write(jf, *[Job(task="t") for _ in range(5)])
    relay = relay_of(jf)
    relay.run_once()
    assert jf.messages.stats().failing == 5

    queue.refuse = lambda _jobs: None
    make_due(jf)
    relay.run_once()

    assert sorted(queue.given) == sorted(ids)


def test_what_waited_for_a_server_is_due_once_it_is_back(jf, queue):
    queue.refuse = lambda jobs: (
        RuntimeError("its own fault") if jobs[0].id == "broken" else UnavailableError("no route")
    )
    write(jf, Job(task="t", id="waits"), Job(task="t", id="broken"))
    relay = relay_of(jf)
    for _ in range(3):
        relay.run_once()
        make_due(jf)
    relay.run_once()
    assert jf.messages.stats().failing == 2

    queue.refuse = lambda jobs: RuntimeError("its own fault") if jobs[0].id == "broken" else None
    write(jf, Job(task="t", id="new"))
    relay.run_once()
    assert queue.given == ["new"]
    relay.run_once()

    assert queue.given == ["new", "waits"]
    stats = jf.messages.stats()
    assert (stats.failing, stats.last_error) == (1, "RuntimeError: its own fault")


def test_one_job_that_is_never_taken_makes_no_outage(jf, queue):
    queue.refuse = lambda jobs: UnavailableError("no") if any(job.id == "never" for job in jobs) else None
    write(jf, Job(task="t", id="never"))
    relay = relay_of(jf)
    for number in range(5):
        relay.run_once()
        write(jf, Job(task="t", id=f"other-{number}"))
        while relay.run_once():
            pass

    assert jf.messages.stats().failing == 1
    with jf.session() as session:
        assert session.execute(text("SELECT attempts FROM jfast_outbox WHERE id = 'never'")).scalar() == 1


def test_a_row_that_cannot_be_read_is_dead_at_once(jf, queue):
    write(jf, Job(task="t", id="odd"), Job(task="t", id="fine"))
    with jf.session() as session:
        session.execute(text("UPDATE jfast_outbox SET payload = '[]' WHERE id = 'odd'"))

    relay_of(jf).run_once()

    assert queue.given == ["fine"]
    (dead,) = jf.messages.dead(10)
    assert dead.message.id == "odd" and "not a JSON object" in (dead.error or "")


def test_an_event_without_a_bus_is_dead_at_once(dsn, bus):
    with opened(dsn, bus=bus) as (jf, _):
        publish(jf, Event(type="x"))
        jf.bus = None
        relay_of(jf).run_once()
        (dead,) = jf.messages.dead(10)
        assert dead.message.attempts == 1 and "no event bus" in (dead.error or "")


def test_a_lease_that_ran_out_is_sent_again_under_the_same_id(jf, queue):
    write(jf, Job(task="t", id="one"))
    leased = jf.messages.lease(10, 60.0)
    assert [message.id for message in leased.messages] == ["one"]
    assert relay_of(jf).run_once() == 0

    make_due(jf)
    relay_of(jf).run_once()

    assert queue.given == ["one"]
    assert jf.messages.mark(leased.token, sent=leased.messages) == 0


def test_retention_takes_delivered_rows_only(jf, queue):
    queue.refuse = lambda jobs: PayloadError("never") if jobs[0].id == "dead" else None
    write(jf, Job(task="t", id="sent"), Job(task="t", id="waits", delay=timedelta(days=1)))
    relay_of(jf).run_once()
    write(jf, Job(task="t", id="dead"))
    relay_of(jf).run_once()

    assert jf.messages.prune(-10) == 1

    stats = jf.messages.stats()
    assert (stats.pending, stats.dead, stats.published) == (1, 1, 0)


@contextmanager
def running(relay):
    relay.start()
    try:
        yield
    finally:
        relay.stop()
        assert relay.join(Deadline(10))


def test_a_send_that_hangs_holds_up_nobody_and_no_transaction(jf, queue, dsn):
    hanging, go_on = threading.Event(), threading.Event()

    def hang(jobs):
        if jobs[0].id == "hangs":
            hanging.set()
            go_on.wait(30)

    queue.refuse = hang
    write(jf, Job(task="t", id="hangs"))
    with running(relay_of(jf, interval=0.1)):
        assert hanging.wait(10)
        write(jf, Job(task="t", id="goes"))  # on SQLite no transaction but this one could be open
        eventually(lambda: list(queue.given), 10, until=lambda given: given == ["goes"])
        if not dsn.startswith("sqlite"):
            open_ones = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
            open_ones += "state = 'idle in transaction'"

            def transactions():  # the other thread's short ones come and go
                with jf.session() as session:
                    return session.execute(text(open_ones)).scalar()

            eventually(transactions, 5, until=lambda found: found == 0)
        go_on.set()
        eventually(lambda: list(queue.given), 10, until=lambda given: given == ["goes", "hangs"])


def test_a_backlog_is_sent_by_two_threads(jf, queue):
    both = threading.Barrier(2)

    def meet(_jobs):
        both.wait(10)

    queue.refuse = meet
    ids = write(jf, *[Job(task="t") for _ in range(8)])

    with running(relay_of(jf, batch_size=2)):
        eventually(lambda: sorted(queue.given), 10, until=lambda given: given == sorted(ids))


# --- events


def test_every_subscriber_of_the_type_gets_a_job_and_the_topic_the_event(jf, queue, bus):
    @subscribe("order.placed", name="mail.confirm")
    def confirm(event: Event) -> None: ...

    @subscribe("order.placed", name="stock.reserve", max_attempts=9)
    def reserve(event: Event) -> None: ...

    @subscribe("orders", name="topic.only")
    def never(event: Event) -> None: ...

    event = Event(type="order.placed", data={"id": 1}, tenant_id="t-1", request_id="r-1", key="1")
    for topic in ("orders", "orders", "audit"):
        publish(jf, event, topic=topic)
        relay_of(jf).run_once()

    jobs = sorted((row.job for row in queue.jobs()), key=lambda job: job.task)
    assert [(job.task, job.max_attempts) for job in jobs] == [
        ("order.placed->mail.confirm", 5),
        ("order.placed->stock.reserve", 9),
    ]
    assert jobs[0].payload == {"topic": "orders", "event": event.to_dict()}
    assert (jobs[0].tenant_id, jobs[0].request_id) == ("t-1", "r-1")
    assert [(sent.topic, sent.event) for sent in bus.sent] == [("orders", event), ("audit", event)]


def test_published_again_after_the_jobs_are_done_it_queues_nothing(jf, queue):
    @subscribe("x", name="n")
    def react(event: Event) -> None: ...

    event = Event(type="x")
    publish(jf, event)
    relay_of(jf).run_once()
    with jf.session() as session:
        session.execute(text("DELETE FROM jfast_outbox"))
    publish(jf, event)
    relay_of(jf).run_once()

    assert len(queue.given) == 1


def test_an_event_that_reaches_nobody_is_refused_and_nothing_is_written(dsn):
    with isolated(), opened(dsn) as (jf, _):
        with jf.session() as session, pytest.raises(UndeliverableEvent, match=r'@subscribe\("x"\)'):
            jf.outbox.publish(session, "t", Event(type="x"))
        assert jf.messages.stats().pending == 0


def test_data_that_cannot_be_stored_is_refused(jf):
    with jf.session() as session, pytest.raises(PayloadError):
        jf.outbox.publish(session, "t", Event(type="x", data={"at": object()}))
    with jf.session() as session, pytest.raises(PayloadError, match="topic"):
        jf.outbox.publish(session, "", Event(type="x"))


def test_a_failing_row_holds_back_its_own_key_only(jf, bus):
    events = [Event(type="x", id=f"{key}{n}", key=key) for n in range(3) for key in ("a", "b")]
    bus.refused_keys = {"a"}
    publish(jf, *events)
    relay = relay_of(jf, batch_size=2, max_attempts=2)
    for _ in range(6):
        relay.run_once()
    assert [sent.event.id for sent in bus.sent] == ["b0", "b1", "b2"]

    make_due(jf)
    relay.run_once()
    bus.refused_keys = set()
    for _ in range(6):
        relay.run_once()

    # The first of its key is dead and reported; it released the others, in their order.
    assert [dead.message.id for dead in jf.messages.dead(10)] == ["a0"]
    assert [sent.event.id for sent in bus.sent][3:] == ["a1", "a2"]


def test_a_run_of_one_key_goes_in_one_batch(jf, bus):
    publish(jf, *[Event(type="x", id=f"e{n}", key="k") for n in range(20)])

    assert relay_of(jf).run_once() == 20

    assert [sent.event.id for sent in bus.sent] == [f"e{n}" for n in range(20)]


def test_only_one_relay_has_a_key_at_a_time(jf, bus):
    publish(jf, *[Event(type="x", id=f"e{n}", key="k") for n in range(4)])
    first = jf.messages.lease(2, 60.0)
    assert [message.id for message in first.messages] == ["e0", "e1"]

    second = jf.messages.lease(2, 60.0)
    assert (second.messages, second.held) == ((), 2)
    assert jf.messages.lease(2, 60.0).looked_at == 0

    jf.messages.mark(first.token, sent=first.messages)
    assert [message.id for message in jf.messages.lease(2, 60.0).messages] == ["e2", "e3"]


def test_a_row_held_behind_one_that_somebody_else_sent_is_let_go(jf, bus):
    publish(jf, *[Event(type="x", id=f"e{n}", key="k") for n in range(2)])
    jf.messages.lease(1, 60.0)
    assert jf.messages.lease(1, 60.0).held == 1
    with jf.session() as session:  # as the asynchronous sibling's relay does it
        session.execute(text("UPDATE jfast_outbox SET status = 'published' WHERE id = 'e0'"))

    assert jf.messages.sweep() == 1
    relay_of(jf).run_once()

    assert [sent.event.id for sent in bus.sent] == ["e1"]


def test_four_relays_send_each_row_once_and_keep_every_key_in_order(jf, bus):
    events = [Event(type="x", id=f"{n:04}", key=f"k{n % 7}") for n in range(500)]
    publish(jf, *events)
    relays = [relay_of(jf, interval=0.1, batch_size=20) for _ in range(4)]
    for relay in relays:
        relay.start()
    try:
        eventually(lambda: jf.messages.stats().published, 60, until=lambda sent: sent == 500, interval=0.05)
    finally:
        for relay in relays:
            relay.stop()
        assert all(relay.join(Deadline(5)) for relay in relays)

    for key in {event.key for event in events}:
        assert [sent.event.id for sent in bus.sent if sent.event.key == key] == [
            event.id for event in events if event.key == key
        ]


# --- with a worker, and in a user's tests


def test_a_subscriber_with_a_session_has_one_effect_per_event(dsn):
    with isolated():

        @subscribe("x", name="n")
        def react(event: Event, session: TaskSession) -> None:
            session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": event.id})

        with opened(dsn) as (jf, queue):
            with jf.session() as session:
                session.execute(text("CREATE TABLE effects (id text)"))
            event = Event(type="x", id="e-1", tenant_id="t-1")
            publish(jf, event)
            drain(jf)
            (job_id,) = queue.given
            # The same event by another job, as the asynchronous sibling might bring it.
            payload = {"topic": "t", "event": event.to_dict()}
            jf.queue.enqueue(Job(task="x->n", payload=payload, id="another", tenant_id="t-1"))
            assert drain(jf).skipped == 1
            with jf.session() as session:
                assert session.execute(text("SELECT count(*) FROM effects")).scalar() == 1
                claims = session.execute(text("SELECT message_id FROM jfast_inbox WHERE consumer = 'x->n'")).scalars()
                assert claims.all() == ["e-1"]
            assert job_id == subscriber_job_id("e-1", "x->n")


def test_inline_runs_what_went_through_the_outbox(dsn):
    ran = []
    with isolated(), opened(dsn) as (jf, _):

        @jf.tasks.task("t")
        def run(payload: dict) -> None:
            ran.append(payload["n"])

        with inline(jf), jf.session() as session:
            jf.outbox.enqueue(session, Job(task="t", payload={"n": 1}))
            assert ran == []
        assert ran == [1]


def test_a_drained_worker_waits_for_what_the_relay_brings(dsn):
    ran = []
    with isolated(), opened(dsn, interval_seconds=0.05) as (jf, _):

        @jf.tasks.task("t")
        def run(payload: dict) -> None:
            ran.append(payload["n"])

        write(jf, *[Job(task="t", payload={"n": n}) for n in range(250)])
        worker = jf.start_worker(threads=2, drain=True)
        assert worker.join(30)
        assert sorted(ran) == list(range(250))
