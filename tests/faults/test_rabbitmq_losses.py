"""The broker dies while publishers keep enqueueing delays: what was confirmed runs, all of it, on quorum queues."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Job, new_id
from jfast_sync.outcome import Done, Settlement
from jfast_sync.queues.rabbitmq.cascade import DEFAULT
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.integration.rabbitmq_steps import EVERYTHING, opened, unless_away
from tests.servers.rabbitmq import SETTLING_SECONDS, RabbitServer
from tests.waiting import eventually

LONGEST_DELAY = 6.0
#: Downtime is what it is; on top of it come the broker's own second try (5 s, as the tests set it) and the machine.
AFTER_DOWNTIME = 20.0


class Publishers:
    """Threads that enqueue jobs with delays spread over 0-6 s, in small batches; they retry like a careful client."""

    def __init__(self, queue: RabbitQueue, count: int, longest: float) -> None:
        self._longest = longest
        self.confirmed: set[str] = set()
        self._queue = queue
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set():
            jobs = [
                Job(
                    task="t", id=new_id(), max_attempts=3,
                    delay=timedelta(seconds=draw.uniform(0, self._longest)),
                )
                for _ in range(10)
            ]  # fmt: skip
            try:
                ids = self._queue.enqueue(jobs)
            except UnavailableError:
                self._stop.wait(0.1)
                continue
            with self._lock:
                self.confirmed.update(ids)
            self._stop.wait(0.03)

    def stop(self) -> set[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.confirmed


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
