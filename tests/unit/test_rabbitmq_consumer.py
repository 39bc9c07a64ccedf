"""What can go wrong between the connection's thread and a claim, without a broker."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.queues.rabbitmq import subscriptions
from jfast_sync.queues.rabbitmq.connection import Server
from jfast_sync.queues.rabbitmq.consumer import Consumer
from jfast_sync.queues.rabbitmq.directory import Directory
from jfast_sync.queues.rabbitmq.ledger import Delivery, Ledger
from jfast_sync.queues.rabbitmq.names import Names, WorkQueue
from jfast_sync.queues.rabbitmq.subscriptions import Subscriptions
from jfast_sync.queues.rabbitmq.topology import Topology

NAMES = Names.of("jfast_jobs")
WORK = WorkQueue(1, "default")


def a_delivery(tag: int) -> Delivery:
    return Delivery(generation=1, tag=tag, consumer="c", work=WORK, message_id=str(tag), body=b"{}")


def test_what_the_thread_gives_back_no_claim_takes_too() -> None:
    unused: Any = None
    consumer = Consumer(
        Server(url="amqp://localhost/"), Topology(NAMES), Ledger(60), Directory(NAMES),
        maker=unused, making=unused, give_back=unused,
    )  # fmt: skip
    had: Counter[int] = Counter()
    lock = threading.Lock()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for start in range(0, 3000, 10):
            consumer._buffer.extend(a_delivery(tag) for tag in range(start, start + 10))
            given: list[Delivery] = []
            back = threading.Thread(target=lambda given=given: given.extend(consumer._emptied()))
            back.start()
            taken = consumer._take(10, frozenset({WORK}))
            back.join()
            with lock:
                had.update(each.tag for each in [*given, *taken])
    finally:
        sys.setswitchinterval(before)
    assert set(had.values()) == {1}
    assert len(had) == 3000


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_consumer_that_the_broker_has_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(subscriptions, "time", clock)
    standing: Any = Subscriptions.__new__(Subscriptions)
    standing._standing, standing._starving, standing._moved = ["c"], None, 0.0
    standing._consumers = {"c": subscriptions._Consumer(WORK, 1)}
    standing.check_fed({WORK: 3})
    clock.now += 2
    standing.check_fed({WORK: 3})
    standing._moved = clock.now  # something came: the broker is slow, not forgetful
    standing.check_fed({WORK: 3})
    clock.now += 2
    standing.check_fed({WORK: 0})
    clock.now += 9
    standing.check_fed({WORK: 1})
    clock.now += 4
    with pytest.raises(UnavailableError, match="hands out none"):
        standing.check_fed({WORK: 1})
