"""What a process recognises when the broker hands out again what it had."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jfast_sync.job import Job
from jfast_sync.queues.rabbitmq.ledger import Arrival, Delivery, Ledger, Standing
from jfast_sync.queues.rabbitmq.message import Stored
from jfast_sync.queues.rabbitmq.names import WorkQueue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STORED = Stored(job=Job(task="t", id="x", max_attempts=3))
WORK = WorkQueue(1, "default")


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def ledger(time: Time) -> Ledger:
    made = Ledger(patience=60.0, clock=time)
    made.connected()
    return made


def delivery(ledger: Ledger, message_id: str = "m", tag: int = 1, counted: int = 0) -> Delivery:
    return Delivery(
        generation=ledger.generation, tag=tag, consumer="c", work=WORK, message_id=message_id,
        body=STORED.to_body(), counted=counted,
    )  # fmt: skip


def test_a_lease_is_current_until_its_connection_is_lost(ledger: Ledger) -> None:
    first = delivery(ledger)
    assert ledger.arrive(first) is Arrival.NEW
    lease = ledger.lease(first, STORED, NOW)
    assert ledger.find(lease)[0] is Standing.CURRENT
    ledger.lose([])
    ledger.connected()
    assert ledger.find(lease)[0] is Standing.ADRIFT
    assert ledger.adrift() == {WORK: 1}


def test_a_running_job_is_adopted_under_its_token(ledger: Ledger) -> None:
    first = delivery(ledger)
    ledger.arrive(first)
    lease = ledger.lease(first, STORED, NOW)
    for number in range(20):  # as many restarts of the broker
        ledger.lose([])
        ledger.connected()
        again = delivery(ledger, tag=number + 7, counted=number + 1)
        assert ledger.arrive(again) is Arrival.ADOPTED
        standing, held = ledger.find(lease)
        assert standing is Standing.CURRENT
        assert held is not None
        assert held.delivery is again
        assert held.lease.job.attempts == 1
        assert held.stored.lapses == 0
    assert ledger.adrift() == {}


def test_a_finished_job_is_over_for_ever(ledger: Ledger) -> None:
    first = delivery(ledger)
    ledger.arrive(first)
    held = ledger.find(ledger.lease(first, STORED, NOW))[1]
    assert held is not None
    ledger.finish(held)
    ledger.lose([])
    ledger.connected()
    assert ledger.arrive(delivery(ledger, counted=1)) is Arrival.OVER


def test_a_second_copy_of_a_message_that_runs_here_is_over(ledger: Ledger) -> None:
    first = delivery(ledger)
    ledger.arrive(first)
    ledger.lease(first, STORED, NOW)
    assert ledger.arrive(delivery(ledger, tag=2)) is Arrival.OVER


def test_another_message_of_the_same_job_is_another_job(ledger: Ledger) -> None:
    first = delivery(ledger)
    ledger.arrive(first)
    lease = ledger.lease(first, STORED, NOW)
    second = delivery(ledger, "other", tag=2)
    assert ledger.arrive(second) is Arrival.NEW
    assert ledger.lease(second, STORED, NOW).token != lease.token


def test_what_only_waited_here_has_not_lapsed(ledger: Ledger) -> None:
    for number in range(3):
        waiting = delivery(ledger, counted=number)
        assert ledger.arrive(waiting) is Arrival.NEW
        assert waiting.lapses == 0
        ledger.lose([waiting])
        ledger.connected()


def test_what_others_had_started_has_lapsed(ledger: Ledger) -> None:
    waiting = delivery(ledger, counted=2)
    ledger.arrive(waiting)
    ledger.lose([waiting])
    ledger.connected()
    again = delivery(ledger, counted=3)
    ledger.arrive(again)
    assert again.lapses == 2


def test_a_message_that_does_not_come_back_is_anothers_in_the_end(ledger: Ledger, time: Time) -> None:
    first = delivery(ledger)
    ledger.arrive(first)
    lease = ledger.lease(first, STORED, NOW)
    ledger.lose([])
    ledger.connected()
    time.now += 59
    assert ledger.find(lease)[0] is Standing.ADRIFT
    time.now += 2
    assert ledger.find(lease)[0] is Standing.GONE


def test_a_token_fits_its_own_job_only(ledger: Ledger) -> None:
    first = delivery(ledger)
    ledger.arrive(first)
    lease = ledger.lease(first, STORED, NOW)
    assert ledger.find(replace(lease, token="0" * 32)) == (Standing.GONE, None)
    assert ledger.find(replace(lease, job=replace(lease.job, id="y"))) == (Standing.GONE, None)
