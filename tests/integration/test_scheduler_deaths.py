"""Processes killed at every boundary of a tick: what is claimed has its job, and what is not is claimed by another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.job import Job
from jfast_sync.ports import Claimed, Queue, TickStore
from jfast_sync.queues.redis import RedisQueue
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.tasks.spec import ScheduleDeclaration
from jfast_sync.ticks.redis import RedisTickStore
from jfast_sync.ticks.sql import SqlTickStore
from tests.integration.scheduler_place import Place, place

__all__ = ["place"]

TICK = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OFTEN = ScheduleDeclaration(name="often", task="report", every=SECOND)
BOUNDARIES = ("after the claim", "after the job", "after the commit")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process_that_dies(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def claim_and_die(place: Place, store: TickStore, queue: Queue, boundary: str, tick: datetime) -> None:
    """Take a tick as the scheduler does, and be killed at a boundary."""
    scheduler = place.scheduler(store, queue)
    if boundary == "after the claim":
        scheduler._prepare = die  # type: ignore[assignment]
    if boundary == "after the job":
        for name in ("enqueue", "enqueue_in"):
            if hasattr(queue, name):
                setattr(queue, name, then_die(getattr(queue, name)))
    scheduler._claim(OFTEN, tick)
    die()


def then_die(work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: die(work(*arguments))


def kill_at_boundaries(place: Place, rounds: int) -> None:
    tick = TICK
    for _ in range(rounds):
        for boundary in BOUNDARIES:
            tick += SECOND
            in_a_process_that_dies(partial(claim_and_die, place, place.store, place.queue, boundary, tick))
            claimed = place.store.latest(["often"]).get("often") == tick
            job = place.queue.find(tick_id("often", tick))
            assert claimed == (job is not None) == (boundary == "after the commit"), boundary
            if not claimed:
                assert place.scheduler()._claim(OFTEN, tick) is Claimed.WON, boundary
    assert {job.id for job in place.jobs()} == {tick_id("often", TICK + at * SECOND) for at in range(1, rounds * 3 + 1)}


def test_a_process_killed_at_any_boundary_leaves_no_claim_without_its_job(place: Place) -> None:
    kill_at_boundaries(place, 3)


@pytest.mark.long
def test_a_process_killed_a_hundred_times_at_each_boundary(place: Place) -> None:
    kill_at_boundaries(place, 100)


class Split:
    """Ticks claimed in one place, and a queue in another; ``expire`` lets a dead process's reservations run out."""

    def __init__(self, place: Place, store: TickStore, queue: Queue, expire: Callable[[], object]) -> None:
        self.place, self.store, self.queue, self.expire = place, store, queue, expire
        on_sqlite = isinstance(store, SqlTickStore) and place.queue.database.dialect == "sqlite"
        # SQLite's only write lock does not wait for the queue: its claim is final before the job goes there.
        self.final = BOUNDARIES[1:] if on_sqlite else BOUNDARIES[2:]

    def kill_at_boundaries(self, rounds: int) -> None:
        tick = TICK
        for _ in range(rounds):
            for boundary in BOUNDARIES:
                tick += SECOND
                in_a_process_that_dies(partial(claim_and_die, self.place, self.store, self.queue, boundary, tick))
                self.expire()
                outcome = self.place.scheduler(self.store, self.queue)._claim(OFTEN, tick)
                assert (outcome is Claimed.WON) == (boundary not in self.final), boundary
        stored = [row.job.id for row in self.queue.jobs(limit=9999)]  # type: ignore[attr-defined]
        ticks = {tick_id("often", TICK + at * SECOND) for at in range(1, rounds * 3 + 1)}
        assert len(stored) == len(ticks)  # none twice
        assert set(stored) == ticks  # and none lost


@pytest.fixture(params=["queue in another file", "queue in Redis", "ticks in Redis"])
def split(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Iterator[Split]:
    if request.param == "queue in another file":
        yield Split(place, place.store, place.new_queue(f"sqlite:///{tmp_path / 'elsewhere.db'}"), lambda: None)
        return
    from redis import Redis

    url = request.getfixturevalue("redis_url")
    if request.param == "queue in Redis":
        queue = RedisQueue(url)
        queue.setup()
        yield Split(place, place.store, queue, lambda: None)
        queue.close()
        return
    client = Redis.from_url(url)
    store = RedisTickStore(client)
    yield Split(place, store, place.queue, lambda: [client.delete(key) for key in client.keys("*claiming*")])
    store.close()


def test_with_the_queue_elsewhere_a_death_loses_no_tick_and_stores_no_job_twice(split: Split) -> None:
    split.kill_at_boundaries(2)


@pytest.mark.long
def test_with_the_queue_elsewhere_a_hundred_deaths_at_each_boundary_lose_no_tick(split: Split) -> None:
    split.kill_at_boundaries(100)


def test_with_the_queue_elsewhere_a_failed_enqueue_releases_the_claim(split: Split) -> None:
    real = split.queue.enqueue
    split.queue.enqueue = then_fail(real)  # type: ignore[method-assign]
    scheduler = split.place.scheduler(split.store, split.queue)
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            scheduler._claim(OFTEN, TICK)
    assert split.store.latest(["often"]) == {}
    split.queue.enqueue = real  # type: ignore[method-assign]
    assert scheduler._claim(OFTEN, TICK) is Claimed.WON
    assert split.store.latest(["often"]) == {"often": TICK}


def test_with_the_queue_elsewhere_nobody_who_writes_waits_for_it(split: Split) -> None:
    real, writer = split.queue.enqueue, split.place.new_queue()

    def enqueue(jobs: Sequence[Job]) -> list[str]:
        writer.enqueue([Job(task="report", id="meanwhile", max_attempts=3)])
        return real(jobs)

    split.queue.enqueue = enqueue  # type: ignore[method-assign]
    assert split.place.scheduler(split.store, split.queue)._claim(OFTEN, TICK) is Claimed.WON
    assert writer.find("meanwhile") is not None


def then_fail(work: Callable[..., Any]) -> Callable[..., Any]:
    def failing(*arguments: Any) -> None:
        work(*arguments)
        raise OSError("disk full")

    return failing
