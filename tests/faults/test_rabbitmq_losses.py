"""The broker dies while publishers keep enqueueing delays: what was confirmed runs, all of it, on quorum queues."""

from __future__ import annotations

import time

import pytest

from jfast_sync.outcome import Done, Settlement
from jfast_sync.queues.rabbitmq.cascade import DEFAULT
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.faults.rabbitmq_load import Publishers
from tests.integration.rabbitmq_steps import EVERYTHING, opened, unless_away
from tests.servers.rabbitmq import SETTLING_SECONDS, RabbitServer
from tests.waiting import eventually

LONGEST_DELAY = 6.0
#: Downtime is what it is; on top of it come the broker's own second try (5 s, as the tests set it) and the machine.
AFTER_DOWNTIME = 20.0


def drain(queue: RabbitQueue, wanted: set[str], timeout: float) -> tuple[set[str], int]:
    """Run what comes, until all that is wanted has come or nothing more does; return it, and how often twice."""
    came: set[str] = set()
    twice = 0

    def run() -> bool:
        nonlocal twice
        leases = queue.claim(200, 0.5, EVERYTHING)
        for lease in leases:
            twice += lease.job.id in came
            came.add(lease.job.id)
        queue.settle([Settlement(lease, Done()) for lease in leases])
        return wanted <= came

    deadline = time.monotonic() + timeout
    while not unless_away(run) and time.monotonic() < deadline:
        pass
    return came, twice


def one_round(
    server: RabbitServer, queue_type: str, how: str, confirmed: int, longest: float = LONGEST_DELAY
) -> tuple[int, int, int, float]:
    """Publish, kill in the middle, restart, drain; return confirmed, lost, doubled and seconds after the restart."""
    with opened(server, cascade=DEFAULT, queue_type=queue_type) as queue:
        time.sleep(SETTLING_SECONDS)  # a queue that is younger may stay without a leader
        publishers = Publishers(queue, 3, longest)
        try:
            eventually(lambda: len(publishers.confirmed), 120, until=lambda count: count >= confirmed)
            server.kill() if how == "kill" else server.stop()
            server.start()
            up = time.monotonic()
        finally:
            sent = publishers.stop()
        came, twice = drain(queue, sent, longest + AFTER_DOWNTIME + (0 if queue_type == "quorum" else 5))
        took = time.monotonic() - up
    return len(sent), len(sent - came), twice, took


@pytest.mark.parametrize(
    ("how", "rounds", "confirmed"),
    [
        ("kill", 1, 500),
        pytest.param("kill", 3, 2000, marks=pytest.mark.long),
        pytest.param("stop", 3, 2000, marks=pytest.mark.long),
    ],
)
def test_quorum_loses_nothing_that_was_confirmed(
    killable_rabbitmq: RabbitServer, how: str, rounds: int, confirmed: int
) -> None:
    for number in range(rounds):
        sent, lost, twice, took = one_round(
            killable_rabbitmq, "quorum", how, confirmed, LONGEST_DELAY if rounds > 1 else 3.0
        )
        print(f"\nquorum, {how}, round {number}: {sent} confirmed, {lost} lost, {twice} twice, all within {took:.1f} s")
        assert sent >= confirmed
        assert lost == 0
        assert took < LONGEST_DELAY + AFTER_DOWNTIME


@pytest.mark.long
def test_what_classic_loses_is_known(killable_rabbitmq: RabbitServer) -> None:
    """Documented, not promised: a classic queue does not keep what a kill finds in its memory."""
    for number in range(2):
        sent, lost, twice, _ = one_round(killable_rabbitmq, "classic", "kill", 2000)
        print(f"\nclassic, kill, round {number}: {sent} confirmed, {lost} lost ({lost / sent:.1%}), {twice} twice")
        assert lost < sent
    sent, lost, twice, _ = one_round(killable_rabbitmq, "classic", "stop", 2000)
    print(f"\nclassic, stop: {sent} confirmed, {lost} lost, {twice} twice")
    assert lost < sent / 20
