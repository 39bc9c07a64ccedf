"""What cannot start now is stored elsewhere first, and acknowledged only then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Job
from jfast_sync.queues.rabbitmq.intake import Intake
from jfast_sync.queues.rabbitmq.ledger import Arrival, Delivery, Ledger, Standing
from jfast_sync.queues.rabbitmq.message import Stored
from jfast_sync.queues.rabbitmq.names import Names, WorkQueue
from jfast_sync.queues.rabbitmq.publisher import Message
from jfast_sync.queues.rabbitmq.routing import Routing
from jfast_sync.queues.rabbitmq.topology import Topology


class Desk:
    """An intake, and what it did with its hands."""

    def __init__(self, queue_type: str = "quorum") -> None:
        self.away = False
        self.stored: list[Message] = []
        self.acknowledged: list[Delivery] = []
        self.taken_back: list[Delivery] = []
        self.ledger = Ledger(patience=60)
        self.ledger.connected()
        self.intake = Intake(
            Routing(Topology(Names.of("jfast_jobs"), queue_type)), self.ledger, store=self._store,
            acknowledge=self.acknowledged.extend, take_back=self.taken_back.extend,
        )  # fmt: skip

    def _store(self, messages: Sequence[Message]) -> None:
        if self.away:
            raise UnavailableError("away")
        for message in messages:
            message.stored = True
        self.stored += messages

    def delivery(self, body: bytes, *, counted: int = 0, again: bool = False, name: str = "m") -> Delivery:
        return Delivery(
            generation=1, tag=1, consumer="c", work=WorkQueue(1, "default"), message_id=name, body=body,
            counted=counted, again=again,
        )  # fmt: skip


GOOD = Stored(job=Job(task="t", max_attempts=3)).to_body()


def test_a_good_delivery_is_a_lease() -> None:
    desk = Desk()
    [lease] = desk.intake.leases([desk.delivery(GOOD, counted=1, again=True)])
    assert (lease.job.attempts, lease.lapses) == (2, 1)
    assert not desk.stored
    assert not desk.acknowledged


def test_what_is_no_job_is_stored_among_the_dead_then_acknowledged() -> None:
    desk = Desk()
    bad = desk.delivery(b"{", name="bad")
    assert len(desk.intake.leases([bad, desk.delivery(GOOD)])) == 1
    [message] = desk.stored
    assert (message.routing_key, message.body) == ("jfast.jobs.dead", b"{")
    assert desk.acknowledged == [bad]


def test_what_cannot_be_stored_is_kept_for_another_try() -> None:
    desk = Desk()
    desk.away = True
    bad = desk.delivery(b"{")
    with pytest.raises(UnavailableError):
        desk.intake.leases([bad])
    assert (desk.taken_back, desk.acknowledged) == ([bad], [])
    assert len(desk.intake.leases([bad, desk.delivery(GOOD, name="good")])) == 1


def test_a_classic_queues_lapse_is_written_down_before_the_job_starts() -> None:
    desk = Desk("classic")
    again = desk.delivery(GOOD, again=True)
    assert desk.intake.leases([again]) == []
    [message] = desk.stored
    stored = Stored.from_body(message.body)
    assert (stored.job.attempts, stored.lapses, message.routing_key) == (1, 1, "jfast.jobs")
    assert desk.acknowledged == [again]


def test_two_copies_of_one_message_that_waited_side_by_side_start_once() -> None:
    """A publisher whose confirm was lost publishes again under the same message id."""
    desk = Desk()
    first, second = desk.delivery(GOOD), desk.delivery(GOOD)
    second.tag = 2
    assert {desk.ledger.arrive(each) for each in (first, second)} == {Arrival.NEW}
    assert len(desk.intake.leases([first, second])) == 1
    assert desk.acknowledged == [second]


def test_a_message_that_came_again_before_its_first_delivery_was_leased_is_adopted() -> None:
    desk = Desk()
    first = desk.delivery(GOOD)
    desk.ledger.arrive(first)
    desk.ledger.lose([])
    desk.ledger.connected()
    second = desk.delivery(GOOD)
    second.generation = desk.ledger.generation
    assert desk.ledger.arrive(second) is Arrival.NEW
    [lease] = desk.intake.leases([first])
    assert desk.intake.leases([second]) == []
    assert desk.ledger.find(lease)[0] is Standing.CURRENT
    assert not desk.acknowledged
