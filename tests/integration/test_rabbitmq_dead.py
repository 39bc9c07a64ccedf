"""Dead letters over plain AMQP where there are many of them, or other readers."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.ports import DeadFilter
from jfast_sync.queues.rabbitmq import holding
from jfast_sync.queues.rabbitmq.message import Stored
from jfast_sync.queues.rabbitmq.publisher import Message
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.integration.cli import COMMAND
from tests.integration.rabbitmq_steps import DEFAULT, a_job, opened, take
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import eventually

ALL = DeadFilter()


def bury(queue: RabbitQueue, count: int) -> list[str]:
    """Dead letters that died one second after another; return their ids, newest first."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    for start in range(0, count, 1000):
        queue._settling.publish([
            Message("", queue.topology.names.dead, Stored(job=job, died_at=began + timedelta(seconds=number)).to_body())
            for number in range(start, min(start + 1000, count))
            for job in [a_job(id=f"job-{number:06}", attempts=3, error="ValueError: no")]
        ])  # fmt: skip
    return [f"job-{number:06}" for number in reversed(range(count))]


@pytest.mark.parametrize(("count", "window"), [(900, 100), pytest.param(25_000, 5000, marks=pytest.mark.long)])
def test_all_are_seen_however_many(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch, count: int, window: int
) -> None:
    """A prefetch is bounded; the newest and the oldest are found all the same."""
    monkeypatch.setattr(holding, "_WINDOW", window)
    with opened(rabbitmq_server) as queue:
        ids = bury(queue, count)
        before = time.monotonic()
        page = queue.dead(ALL, limit=40)
        took = time.monotonic() - before
        print(f"\n{count} dead: the first page in {took:.2f} s")
        assert [letter.job.id for letter in page] == ids[:40]
        after = queue.dead(ALL, limit=40, after=ids[39])
        assert [letter.job.id for letter in after] == ids[40:80]
        assert [letter.job.id for letter in queue.dead(ALL, limit=count + 1)] == ids
        for job_id in (ids[0], ids[-1]):
            letter = queue.find_dead(job_id)
            assert letter is not None
            assert letter.job.id == job_id
        assert queue.discard([ids[0], ids[-1], "unknown"]) == [ids[-1], ids[0]]
        assert queue.revive_where(ALL) == count - 2
        stats = queue.stats()
        assert (stats.ready, stats.dead) == (count - 2, 0)


def test_a_page_goes_on_where_another_process_ended_the_last(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    name = rabbitmq_server.new_name()
    with opened(rabbitmq_server, name) as queue, opened(rabbitmq_server, name) as other:
        ids = bury(queue, 10)
        assert [letter.job.id for letter in queue.dead(ALL, limit=4)] == ids[:4]
        assert [letter.job.id for letter in other.dead(ALL, limit=4, after=ids[3])] == ids[4:8]
        assert other.dead(ALL, limit=4, after="unknown") == []
        assert queue.revive([ids[3]]) == [ids[3]]  # the end of the page is gone, its place is not
        assert [letter.job.id for letter in queue.dead(ALL, limit=4, after=ids[3])] == ids[4:8]
        take(queue, 1)


def test_readers_wait_for_each_other(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    """While one holds all of them, the queue seems empty to everybody else."""
    name = rabbitmq_server.new_name()
    with opened(rabbitmq_server, name) as queue, opened(rabbitmq_server, name) as other:
        ids = set(bury(queue, 50))
        seen: list[set[str]] = []

        def list_again() -> None:
            seen.extend({letter.job.id for letter in other.dead(ALL, limit=100)} for _ in range(5))

        thread = threading.Thread(target=list_again)
        with queue._graveyard._held(lambda _letter: None):
            thread.start()
            time.sleep(0.3)  # the time for which somebody else holds them
        thread.join()
        assert seen == [ids] * 5


def test_what_another_holds_for_long_is_not_taken_for_nothing(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "_ELSEWHERE", 0.2)
    name = rabbitmq_server.new_name()
    with opened(rabbitmq_server, name) as queue, opened(rabbitmq_server, name) as other:
        assert other.dead(ALL, limit=5) == []
        bury(queue, 5)
        with queue._graveyard._held(lambda _letter: None), pytest.raises(UnavailableError, match="try again"):
            other.dead(ALL, limit=5)
        assert len(other.dead(ALL, limit=5)) == 5


@pytest.mark.parametrize(
    ("command", "rounds"),
    [
        (("jobs", "retry", "--all"), 1),
        pytest.param(("jobs", "retry", "--all"), 6, marks=pytest.mark.long),
        pytest.param(("jobs", "dead", "--limit", "5000"), 3, marks=pytest.mark.long),
        pytest.param(("jobs", "discard", "unknown", "--yes"), 3, marks=pytest.mark.long),
    ],
)
def test_a_reader_killed_midway_loses_nothing(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, tmp_path: Path, command: tuple[str, ...], rounds: int
) -> None:
    name = rabbitmq_server.new_name()
    (tmp_path / "jfast.toml").write_text(
        f'[plugin.queue]\nbackend = "rabbitmq"\nname = "{name}"\nrabbitmq_url = "{rabbitmq_url}"\n'
    )
    draw, midway = random.Random(3), 0
    with opened(rabbitmq_server, name, cascade=DEFAULT) as queue, rabbitmq_server.connect() as connection:
        channel, ids = connection.channel(), set(bury(queue, 4000))

        def ready(amqp_queue: str) -> int:
            return int(channel.queue_declare(amqp_queue, passive=True).method.message_count)

        names = queue.topology.names
        for number in range(rounds):
            there = ready(names.dead)
            reader = subprocess.Popen([*COMMAND, *command], cwd=tmp_path, stdout=subprocess.DEVNULL)
            eventually(lambda: ready(names.dead) < there or reader.poll() is not None, 60, what="the reader")  # noqa: B023
            time.sleep(draw.uniform(0, 0.2) if number else 0)  # somewhere in the middle
            midway += reader.poll() is None
            reader.kill()
            reader.wait()
            eventually(
                lambda: ready(names.dead) + ready(names.main), 20,
                until=lambda count: count >= len(ids), what="what the killed one held",
            )  # fmt: skip
        dead = [letter.job.id for letter in queue.dead(ALL, limit=10_000)]
        alive = [lease.job.id for lease in take(queue, ready(names.main))] if ready(names.main) else []
    print(f"\n{' '.join(command)}: {midway} of {rounds} killed midway, {len(dead) + len(alive) - len(ids)} there twice")
    assert midway
    assert {*dead, *alive} == ids
    assert len(dead) + len(alive) - len(ids) <= rounds * 500  # what was stored and not yet removed
    if command[1] != "retry":
        assert (len(dead), alive) == (len(ids), [])
