"""What a message carries, and how starts are counted."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jfast_sync.errors import PayloadError
from jfast_sync.job import Job
from jfast_sync.outcome import Bury, Done, Release, Retry
from jfast_sync.queues.rabbitmq.ledger import Delivery, Held
from jfast_sync.queues.rabbitmq.message import ERROR_HEADER, Stored, dead_job, deliveries
from jfast_sync.queues.rabbitmq.names import Names, WorkQueue
from jfast_sync.queues.rabbitmq.routing import Routing
from jfast_sync.queues.rabbitmq.topology import Topology

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROUTING = Routing(Topology(Names.of("jfast_jobs")))


def held(job: Job, lapsed: int = 0) -> Held:
    stored = Stored(job=job)
    delivery = Delivery(
        generation=1, tag=1, consumer="c", work=WorkQueue(1, "default"), message_id="m", body=stored.to_body()
    )
    return Held(delivery, stored.lapsed(lapsed).lease("t", NOW), lapsed, "copy")


def test_a_body_round_trips() -> None:
    stored = Stored(
        job=Job(task="t", payload={"n": "☃"}, max_attempts=5, tenant_id="acme", attempts=2),
        lapses=1, snoozed_since=NOW, due_ms=5, traceback="Traceback", died_at=NOW,
    )  # fmt: skip
    assert Stored.from_body(stored.to_body()) == stored


def test_the_siblings_keys_come_first_in_its_order() -> None:
    body = Stored(job=Job(task="t", max_attempts=3), lapses=2).to_body()
    keys = list(json.loads(body))
    assert keys[:9] == [
        "id", "task", "payload", "attempts", "max_attempts", "request_id", "tenant_id", "trace", "error",
    ]  # fmt: skip
    assert keys[-1] == "lapses"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"id": "x"}', b'{"id": "x", "task": "t", "lapses": "many"}'])
def test_what_is_no_job_is_refused(body: bytes) -> None:
    with pytest.raises(PayloadError):
        Stored.from_body(body)


@pytest.mark.parametrize(
    ("attempts", "most", "times", "starts_as", "lapses"),
    [(0, 3, 0, 1, 0), (0, 3, 1, 2, 1), (0, 3, 2, 3, 2), (0, 3, 9, 3, 9), (1, 3, 1, 3, 1), (0, 1, 1, 1, 1)],
)
def test_a_lapse_spends_an_attempt_and_never_the_last(
    attempts: int, most: int, times: int, starts_as: int, lapses: int
) -> None:
    lease = Stored(job=Job(task="t", attempts=attempts, max_attempts=most)).lapsed(times).lease("t", NOW)
    assert (lease.job.attempts, lease.lapses) == (starts_as, lapses)
    assert lease.alone == (lapses > 0 and starts_as >= most)


@pytest.mark.parametrize(
    ("headers", "count"), [(None, 0), ({}, 0), ({"x-delivery-count": 3}, 3), ({"x-delivery-count": "x"}, 0)]
)
def test_deliveries_are_what_the_broker_counted(headers: dict[str, object] | None, count: int) -> None:
    assert deliveries(headers) == count


def test_without_delay_straight_to_the_queue() -> None:
    message = ROUTING.enqueued(Job(task="t", max_attempts=3, priority=4, queue="mail"), NOW)
    assert (message.exchange, message.routing_key) == ("", "jfast.jobs.queue.mail.high")


def test_with_delay_into_the_cascade() -> None:
    message = ROUTING.enqueued(Job(task="t", max_attempts=3, delay=timedelta(seconds=1.01)), NOW)
    assert message.exchange == "jfast.jobs.delay.24"
    assert message.routing_key == ".".join([*"0000000000000000000001011", "default", "normal"])
    assert Stored.from_body(message.body).due_ms is None


def test_beyond_the_range_all_bits_and_the_due_time() -> None:
    message = ROUTING.enqueued(Job(task="t", max_attempts=3, delay=timedelta(days=100)), NOW)
    assert message.routing_key == ".".join([*"1" * 25, "default", "normal"])
    due = Stored.from_body(message.body).due_ms
    assert due == int((NOW + timedelta(days=100)).timestamp() * 1000)


def test_copies_carry_no_header_of_the_broker() -> None:
    for outcome in (Retry(1), Bury("no"), Release()):
        message = ROUTING.outcome(held(Job(task="t", max_attempts=3)), outcome, NOW)
        assert message is not None
        assert message.headers is None
        assert message.message_id == "copy"
    assert ROUTING.outcome(held(Job(task="t", max_attempts=3)), Done(), NOW) is None


@pytest.mark.parametrize(
    ("outcome", "attempts"), [(Retry(0), 2), (Retry(0, refund=True), 1), (Release(), 1), (Bury("no"), 2)]
)
def test_what_a_copy_counts(outcome: Retry | Release | Bury, attempts: int) -> None:
    message = ROUTING.outcome(held(Job(task="t", max_attempts=5), lapsed=1), outcome, NOW)
    assert message is not None
    stored = Stored.from_body(message.body)
    assert (stored.job.attempts, stored.lapses) == (attempts, 1)


def test_an_undecodable_dead_letter_keeps_its_bytes_and_reason() -> None:
    message = ROUTING.undecodable(b"{broken", "not a job: no", NOW)
    letter = dead_job(message.body, message.headers, message.message_id)
    assert (letter.raw, letter.job.error, letter.died_at) == (b"{broken", "not a job: no", NOW)
    assert message.headers is not None and message.headers[ERROR_HEADER]


def test_a_revived_job_starts_from_scratch() -> None:
    stored = Stored(
        job=Job(task="t", id="x", attempts=3, max_attempts=3, error="no", tenant_id="acme"),
        lapses=2, traceback="T", died_at=NOW, snoozed_since=NOW,
    )  # fmt: skip
    again = Stored.from_body(ROUTING.revived(stored.to_body(), stored, NOW).body)
    assert (again.job.id, again.job.attempts, again.job.error, again.job.tenant_id) == ("x", 0, None, "acme")
    assert (again.lapses, again.traceback, again.died_at, again.snoozed_since) == (0, None, None, None)
