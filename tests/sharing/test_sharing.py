"""The real asynchronous sibling and ours work on one database: both directions, and who keeps whose promises."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from threading import Event as Flag
from typing import Any

import pytest

from jfast_sync import Job
from jfast_sync.config import load_config
from jfast_sync.context import Origin, bind
from jfast_sync.core import JFast
from jfast_sync.event import subscriber_job_id
from jfast_sync.events import Event
from jfast_sync.inbox import claim_once
from jfast_sync.outbox.delivery import Delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.outbox.rows import job_row
from jfast_sync.outcome import Bury, Done, Release, Retry, Settlement
from jfast_sync.ports import Claimed, DeadFilter, Held, Selection, Settled
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.tasks import TaskSession, task
from jfast_sync.ticks.sql import SqlTickStore
from tests.sharing.ours import REACT, TRACE, drain, effects, note_effect, rows, run, tasks_of_the_shop
from tests.waiting import eventually

WHO = {"tenant_id": "acme", "request_id": "r-1", "trace": TRACE}
AS_WHO = ("acme", "r-1", TRACE["traceparent"])


def sql_queue(jf: JFast) -> SqlQueue:
    queue = jf.queue.backend
    assert isinstance(queue, SqlQueue)
    return queue


def publish(jf: JFast, event: Event) -> None:
    with jf.session() as session:
        jf.outbox.publish(session, "receipts", event)


# --- both directions


def test_what_the_sibling_enqueues_and_publishes_our_worker_does(sibling, ours):
    tasks_of_the_shop()
    sibling.ask("enqueue", via="queue", task="shop.note", payload={"n": 1}, **WHO)
    sibling.ask("enqueue", via="outbox", task="shop.note", payload={"n": 2}, **WHO)
    sibling.ask("rolled_back", task="shop.note", payload={"n": 3}, **WHO)
    sibling.ask("publish", topic="receipts", type="receipt.registered", data={"n": 4}, **WHO)

    assert drain(ours) == 3

    assert effects(ours) == [
        ("ours", REACT, 4, *AS_WHO),
        ("ours", "shop.note", 1, *AS_WHO),
        ("ours", "shop.note", 2, *AS_WHO),
    ]


def test_what_we_enqueue_and_publish_the_siblings_worker_does(sibling, ours):
    tasks_of_the_shop()
    with bind(Origin(tenant_id="acme", request_id="r-1", trace=TRACE)):
        # Its worker knows neither queues nor priorities.
        ours.queue.enqueue(Job(task="shop.note", payload={"n": 1}, queue="reports", priority=-5))
        with ours.session() as session:
            ours.outbox.enqueue(session, Job(task="shop.note", payload={"n": 2}))
        publish(ours, Event(type="receipt.registered", data={"n": 4}))

    assert sibling.ask("work") == 3

    assert effects(ours) == [
        ("sibling", REACT, 4, *AS_WHO),
        ("sibling", "shop.note", 1, *AS_WHO),
        ("sibling", "shop.note", 2, *AS_WHO),
    ]


def test_a_job_of_the_siblings_has_the_defaults_of_our_columns(sibling, ours):
    [job_id] = sibling.ask("enqueue", via="queue", task="shop.note")
    lease = sql_queue(ours).claim(1, 0.0, Selection(worker="w", queues=frozenset({"default"})))[0]
    job = lease.job
    assert (job.id, job.queue, job.priority, job.attempts, job.max_attempts) == (job_id, "default", 0, 1, 3)
    assert (job.payload, job.trace or {}, job.tenant_id, job.request_id) == ({"n": 0}, {}, None, None)
    assert (lease.lapses, lease.snoozed_since) == (0, None)


# --- tables


def test_tables_the_sibling_made_serve_both(opened_sibling, open_ours):
    with opened_sibling() as sibling:
        sibling.ask("enqueue", via="queue", task="shop.note", payload={"n": 0})
        sibling.ask("enqueue", via="relayed", task="shop.note", payload={"n": 1}, id="1" * 32)
    ours = open_ours()
    with opened_sibling() as sibling:  # its set-up accepts what ours made of its tables
        assert drain_old(ours) == [("ours", "shop.note", 0), ("ours", "shop.note", 1)]
        run(ours, "DELETE FROM effects")
        both_use_the_tables(sibling, ours)


def test_tables_we_made_serve_both(open_ours, opened_sibling):
    ours = open_ours()
    with opened_sibling() as sibling:
        both_use_the_tables(sibling, ours)


def both_use_the_tables(sibling: Any, ours: JFast) -> None:
    for via, job_id in {"relayed": "q" * 128, "outbox": "o" * 128}.items():
        sibling.ask("enqueue", via=via, task="shop.note", id=job_id, request_id="r" * 128)
    assert rows(ours, "SELECT id FROM jfast_jobs") == [("o" * 128,)]
    assert sibling.ask("relay") == 1
    assert sibling.ask("work") == 2
    assert [effect[:2] for effect in effects(ours)] == [("sibling", "shop.note")] * 2
    ours.queue.enqueue(Job(task="shop.note", payload={"n": 1}))
    assert sibling.ask("work") == 1


def drain_old(jf: JFast) -> list[tuple[Any, ...]]:
    """Let our relay and our worker do what the sibling had left before our set-up."""
    tasks_of_the_shop()
    assert jf.messages is not None
    assert Relay(jf.messages, Delivery(jf.queue.backend, jf.bus), RelayOptions()).run_once() == 1
    drain(jf)
    return [effect[:3] for effect in effects(jf)]


def test_the_siblings_relay_brings_what_our_outbox_holds(sibling, ours):
    job = ours.queue.prepare(
        Job(task="shop.note", payload={"n": 1}, id="o" * 128, tenant_id="acme", request_id="r" * 128, trace=TRACE)
    )
    with ours.session() as session:
        assert ours.messages is not None
        ours.messages.insert(session, [job_row(job, postgres=True)])

    assert sibling.ask("relay") == 1
    assert sibling.ask("work") == 1

    assert effects(ours) == [("sibling", "shop.note", 1, "acme", "r" * 128, TRACE["traceparent"])]
    assert rows(ours, "SELECT id, status FROM jfast_outbox") == [("o" * 128, "published")]


# --- both workers on one table


def test_both_workers_do_each_job_once(sibling, ours):
    """Ours holds its first job until the sibling has done one, so that both take part for certain."""
    theirs_seen = Flag()

    @task("shop.note")
    def note(payload: dict[str, Any], session: TaskSession) -> None:
        assert theirs_seen.wait(30)
        note_effect(session, "shop.note", payload["n"])

    sibling.ask("enqueue", via="queue", task="shop.note", count=60)
    worker = ours.start_worker(threads=2, claim="registered")
    try:
        eventually(lambda: ours.queue.stats().running, what="our worker to hold a job")
        sibling.ask("start_worker")
        eventually(lambda: [one for one in effects(ours) if one[0] == "sibling"], what="an effect of the sibling's")
        theirs_seen.set()
        eventually(lambda: rows(ours, "SELECT id FROM jfast_jobs"), until=lambda left: not left, timeout=30)
    finally:
        theirs_seen.set()
        sibling.ask("stop_worker")
        worker.stop()
        assert worker.join(30)

    done = effects(ours)
    assert [effect[2] for effect in done] == list(range(60))
    assert {effect[0] for effect in done} == {"ours", "sibling"}


def test_claiming_what_we_know_leaves_the_siblings_jobs_to_it(sibling, ours):
    tasks_of_the_shop()
    sibling.ask("enqueue", via="queue", task="theirs.only")
    sibling.ask("enqueue", via="queue", task="shop.note")

    assert drain(ours, claim="registered") == 1
    assert sibling.ask("work") == 1

    assert [effect[:2] for effect in effects(ours)] == [("ours", "shop.note"), ("sibling", "theirs.only")]


def test_the_siblings_worker_buries_a_task_it_does_not_know_and_a_replay_brings_it_back(sibling, ours):
    @task("ours.only")
    def only(payload: dict[str, Any], session: TaskSession) -> None:
        note_effect(session, "ours.only", payload["n"])

    ours.queue.enqueue(Job(task="ours.only", payload={"n": 1}, id="x"))
    sibling.ask("work")
    [dead] = sql_queue(ours).dead(DeadFilter(), limit=5)
    assert (dead.job.id, dead.job.attempts) == ("x", 1)
    assert (dead.job.error or "").startswith("UnknownTask: No handler for task 'ours.only'")

    assert sql_queue(ours).revive(["x"]) == ["x"]
    assert drain(ours) == 1
    assert [effect[:3] for effect in effects(ours)] == [("ours", "ours.only", 1)]


def test_with_a_table_each_neither_takes_what_it_does_not_know(sibling, open_ours):
    @task("ours.only")
    def only(payload: dict[str, Any], session: TaskSession) -> None:
        note_effect(session, "ours.only", payload["n"])

    ours = open_ours(queue={"name": "sync_jobs"})
    sibling.ask("enqueue", via="sync_jobs", task="ours.only", payload={"n": 1}, **WHO)
    sibling.ask("enqueue", via="queue", task="theirs.only", payload={"n": 2})

    assert sibling.ask("work") == 1
    assert drain(ours) == 1

    assert [effect[:3] for effect in effects(ours)] == [("ours", "ours.only", 1), ("sibling", "theirs.only", 2)]
    assert sibling.ask("dead") == []


# --- the fence


def taken_over(sibling: Any, jf: JFast) -> Any:
    """Claim a job, let the lease run out, and let the sibling claim it; return our lease."""
    [job_id] = sibling.ask("enqueue", via="queue", task="shop.note")
    lease = sql_queue(jf).claim(1, 0.0, Selection(worker="w"))[0]
    run(jf, "UPDATE jfast_jobs SET locked_until = now() - interval '1 second'")
    assert sibling.ask("claim")["id"] == job_id
    return lease


AFTERWARDS = {
    "it runs it": (),
    "it failed and waits": (("nack", {"retry": True}),),
    "it failed, and is claimed again": (("nack", {"retry": True}), ("due", {}), ("claim", {})),
    "it was released": (("release", {}),),
    "it was released, and is claimed again": (("release", {}), ("claim", {})),
    "it was buried": (("nack", {"retry": False}),),
    "it was buried, replayed and is claimed again": (("nack", {"retry": False}), ("replay", {}), ("claim", {})),
    "it was done": (("ack", {}),),
}


@pytest.mark.parametrize("steps", AFTERWARDS.values(), ids=AFTERWARDS)
def test_a_lease_that_the_sibling_took_over_changes_nothing_any_more(steps, sibling, ours):
    """It writes no token: the one of our lease stays in the row."""
    queue = sql_queue(ours)
    lease = taken_over(sibling, ours)
    for step, fields in steps:
        if step == "due":
            run(ours, "UPDATE jfast_jobs SET available_at = now()")
        elif step == "replay":
            assert sibling.ask("retry_dead") == 1  # its attempts start from nothing: the count is that of our lease
        elif step == "claim":
            assert sibling.ask("claim")["id"] == lease.job.id
        else:
            sibling.ask(step, job_id=lease.job.id, **fields)
    before = rows(ours, "SELECT * FROM jfast_jobs")

    assert queue.extend([lease]) == [Held.LOST]
    for outcome in (Done(), Retry(delay=0.0, error="e"), Bury(error="e"), Release()):
        assert queue.settle([Settlement(lease, outcome)]) == [Settled.REFUSED]
    with ours.session() as session:
        assert queue.complete_in(session, lease) is False

    assert rows(ours, "SELECT * FROM jfast_jobs") == before


def test_a_lapsed_handler_cannot_commit_what_the_sibling_has_taken(sibling, ours):
    @task("shop.note")
    def note(payload: dict[str, Any], session: TaskSession) -> None:
        note_effect(session, "shop.note", 1)
        run(ours, "UPDATE jfast_jobs SET locked_until = now() - interval '1 second'")
        assert sibling.ask("claim")["id"] == "x"

    sibling.ask("enqueue", via="queue", task="shop.note", id="x")
    worker = ours.start_worker(threads=1)
    eventually(lambda: worker.counts.lost, until=lambda lost: lost == 1)
    worker.stop()
    assert worker.join(30)
    assert effects(ours) == []

    sibling.ask("release", job_id="x")
    assert sibling.ask("work") == 1
    assert [effect[:2] for effect in effects(ours)] == [("sibling", "shop.note")]


def test_what_the_siblings_worker_left_behind_is_ours_after_its_lease(sibling, ours):
    tasks_of_the_shop()
    sibling.ask("enqueue", via="queue", task="shop.note", id="x")
    assert sibling.ask("claim")["id"] == "x"
    assert drain_now(ours) == 0
    run(ours, "UPDATE jfast_jobs SET locked_until = now() - interval '1 second'")
    assert sql_queue(ours).recover() == 1
    assert drain(ours) == 1
    assert [effect[:2] for effect in effects(ours)] == [("ours", "shop.note")]


def drain_now(jf: JFast) -> int:
    return len(sql_queue(jf).claim(1, 0.0, Selection(worker="w")))


def test_the_siblings_own_leases_have_no_fence(sibling, ours):
    """What the guide warns of: it settles by the id alone, and claims a lapsed job however often that was started."""
    sibling.ask("enqueue", via="queue", task="shop.note", id="x")
    for attempts in (1, 2, 3, 4):
        claimed = sibling.ask("claim")
        assert (claimed["attempts"], claimed["max_attempts"]) == (attempts, 3)
        run(ours, "UPDATE jfast_jobs SET locked_until = now() - interval '1 second'")
    assert sql_queue(ours).recover() == 1
    lease = sql_queue(ours).claim(1, 0.0, Selection(worker="w"))[0]
    sibling.ask("ack", job_id="x")
    assert rows(ours, "SELECT id FROM jfast_jobs") == []
    assert sql_queue(ours).settle([Settlement(lease, Done())]) == [Settled.REFUSED]


# --- ids, JSON, inbox


def test_a_tick_and_a_subscribers_job_have_one_id_in_both(sibling):
    at = datetime(2026, 1, 1, 3, tzinfo=UTC)
    for name in ("nightly", "weekly-é"):
        for text in (at.isoformat(), "2026-01-01T04:00:00+01:00"):
            assert sibling.ask("tick", name=name, at=text) == tick_id(name, at)
    theirs = sibling.ask(
        "subscriber_job", event_type="receipt.registered", name="alert.check_budget", event_id="a" * 32
    )
    assert theirs == subscriber_job_id("a" * 32, "receipt.registered->alert.check_budget")


def test_a_tick_that_one_scheduler_has_claimed_is_not_the_others(sibling, ours):
    assert ours.database is not None
    store = SqlTickStore(ours.database)
    first, second = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2))
    with store.claiming("nightly", first, by="w") as claim:
        assert claim.outcome is Claimed.WON
    assert sibling.ask("fire", name="nightly", at=first.isoformat()) is False
    assert sibling.ask("fire", name="nightly", at=second.isoformat()) is True
    with store.claiming("nightly", second, by="w") as claim:
        assert claim.outcome is Claimed.LOST
    assert store.latest(["nightly"]) == {"nightly": second}
    assert rows(ours, "SELECT id FROM jfast_jobs") == [(tick_id("nightly", second),)]


def test_both_schedulers_together_tick_once(project, opened_sibling, open_ours):
    toml = project / "jfast.toml"
    toml.write_text(toml.read_text().replace("prefetch = 10", "scheduler = true"))
    ran: list[str] = []

    @task("beat", every=timedelta(seconds=1))
    def beat(payload: dict[str, Any]) -> None:
        ran.append(payload["scheduled_for"])

    ours = open_ours()
    claimed = "SELECT fire_at FROM jfast_schedule_ticks WHERE name = 'beat'"
    with opened_sibling():
        eventually(lambda: rows(ours, claimed), what="a tick that the sibling claimed")
        ours.start_worker(threads=2)
        eventually(lambda: len(ran), until=lambda count: count >= 3)
    with_both = len(ran)
    eventually(lambda: len(ran), until=lambda count: count > with_both + 1, what="a tick that we claimed")
    done = [datetime.fromisoformat(tick) for tick in ran]
    assert len(set(done)) == len(done)
    assert set(done) <= {tick for (tick,) in rows(ours, claimed)}


def test_the_json_of_jobs_and_events_is_one_form(sibling):
    a_job_is_one_form(sibling)
    an_event_is_one_form(sibling)


def a_job_is_one_form(sibling: Any) -> None:
    fields: dict[str, Any] = {"id": "j", "task": "shop.note", "payload": {"n": 1, "name": "é"}, "max_attempts": 5}
    ours = Job(**fields, tenant_id="acme", request_id="r-1", trace=TRACE)
    theirs = sibling.ask("job_json", **fields, **WHO)
    written, read = json.loads(ours.to_wire()), json.loads(theirs)
    assert list(written)[: len(read)] == list(read)  # the same keys in the same order, and then those of our own
    assert {key: written[key] for key in read} == read
    # Each reads the other's and writes it again without a change.
    assert json.loads(sibling.ask("job_json", raw=ours.to_wire().decode())) == read
    assert json.loads(Job.from_wire(theirs).to_wire()).items() >= read.items()


def an_event_is_one_form(sibling: Any) -> None:
    fields: dict[str, Any] = {
        "id": "e", "type": "receipt.registered", "source": "shop", "data": {"n": 1, "name": "é"}, "key": "k"
    }  # fmt: skip
    at = datetime(2026, 1, 1, 3, tzinfo=UTC)
    ours = Event(**fields, occurred_at=at, tenant_id="acme", request_id="r-1", trace=TRACE)
    theirs = sibling.ask("event_json", **fields, occurred_at=at.isoformat(), **WHO)
    assert json.dumps(ours.to_dict()) == theirs  # byte for byte, keys in the same order
    assert Event.from_wire(theirs) == ours
    assert sibling.ask("event_json", raw=json.dumps(ours.to_dict())) == theirs


@pytest.mark.parametrize("first", ["sibling", "ours"])
def test_an_event_that_one_has_handled_is_skipped_by_the_other(first, sibling, ours):
    tasks_of_the_shop()
    event = Event(type="receipt.registered", data={"n": 1}, tenant_id="acme", request_id="r-1", trace=TRACE)
    publish(ours, event)
    payload = {"topic": "receipts", "event": event.to_dict()}

    for redelivered, who in enumerate(["sibling", "ours"] if first == "sibling" else ["ours", "sibling"]):
        if redelivered:
            sibling.ask("enqueue", via="queue", task=REACT, payload=payload)
        if who == "ours":
            drain(ours)
        else:
            assert sibling.ask("work") == 1

    assert effects(ours) == [(first, REACT, 1, *AS_WHO)]
    assert rows(ours, "SELECT count(*) FROM jfast_jobs") == [(0,)]


def test_claim_once_is_one_claim_where_no_tenant_is_named(sibling, ours):
    with ours.session() as session:
        assert claim_once(session, "m1", consumer="mail", tenant_id=None)
    assert sibling.ask("inbox", message_id="m1", consumer="mail") is False
    assert sibling.ask("inbox", message_id="m2", consumer="mail") is True
    with ours.session() as session:
        assert not claim_once(session, "m2", consumer="mail", tenant_id=None)


def test_an_event_published_by_both_is_one_job(sibling, ours):
    tasks_of_the_shop()
    publish(ours, Event(type="receipt.registered", id="e1", data={"n": 1}))
    sibling.ask("publish", topic="receipts", type="receipt.registered", id="e1", data={"n": 1})
    assert drain(ours) == 1
    assert [effect[:2] for effect in effects(ours)] == [("ours", REACT)]


# --- configuration


def test_the_siblings_file_is_ours_and_names_what_does_not_apply(project):
    config = load_config(project, environ={})
    assert config.app.name == "shop"
    assert (config.queue.backend, config.queue.visibility_timeout, config.database.pool_size) == ("postgres", 60, 5)
    named = ["[app] version", "[plugin.database] max_overflow", "[plugin.queue] prefetch"]
    assert len(config.warnings) == len(named)
    for name in named:
        assert [warning for warning in config.warnings if name in warning], name
