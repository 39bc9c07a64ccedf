"""The scheduler on real databases: a claim and its job share their fate, whatever kills or stops a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from jfast_sync.job import Job
from jfast_sync.ports import Claimed
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.scheduler import Scheduler
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.declarations import isolated
from jfast_sync.tasks.registry import Registry
from jfast_sync.ticks.sql import SqlTickStore
from tests.clock import FakeClock
from tests.waiting import eventually

TICK = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))
    yield made
    made.close()


@pytest.fixture
def on_postgres(postgres_dsn: str) -> Iterator[Place]:
    made = Place(postgres_dsn)
    yield made
    made.close()


class Place:
    """A database, and queues and stores on it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._queues: list[SqlQueue] = []
        self.queue = self.new_queue()
        self.store = SqlTickStore(self.queue.database)
        with isolated():
            self.tasks = Registry()
        self.tasks.task("report")(lambda: None)

    def new_queue(self, dsn: str | None = None) -> SqlQueue:
        queue = SqlQueue(Database(dsn or self.dsn), listen=False)
        queue.setup()
        self._queues.append(queue)
        return queue

    def scheduler(self, store: SqlTickStore | None = None) -> Scheduler:
        prepare = partial(replace, max_attempts=3)
        return Scheduler(store or self.store, self.queue, self.tasks, prepare=prepare)

    def jobs(self) -> list[Job]:
        return [row.job for row in self.queue.jobs(limit=9999)]

    def close(self) -> None:
        for queue in self._queues:
            queue.close()


def die() -> None:
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


def claim_and_die(place: Place, queue: SqlQueue, boundary: str, tick: datetime) -> None:
    job = Job(task="report", id=tick_id("often", tick), max_attempts=3)
    with place.store.claiming("often", tick, by="doomed") as claim:
        if boundary == "after the claim":
            die()
        if queue is place.queue:
            assert claim.session is not None
            queue.enqueue_in(claim.session, [job])
        else:
            queue.enqueue([job])
        if boundary == "after the job":
            die()
    die()  # after the commit


BOUNDARIES = ("after the claim", "after the job", "after the commit")


def kill_at_boundaries(place: Place, rounds: int) -> None:
    tick = TICK
    for _ in range(rounds):
        for boundary in BOUNDARIES:
            tick += SECOND
            in_a_process_that_dies(partial(claim_and_die, place, place.queue, boundary, tick))
            claimed = place.store.latest(["often"]).get("often") == tick
            stored = place.queue.find(tick_id("often", tick)) is not None
            assert claimed == stored == (boundary == "after the commit"), boundary
            if not claimed:
                with place.store.claiming("often", tick, by="next") as claim:
                    assert claim.outcome is Claimed.WON, boundary


def test_a_process_killed_at_any_boundary_leaves_no_claim_without_its_job(place: Place) -> None:
    kill_at_boundaries(place, 3)


@pytest.mark.long
def test_a_process_killed_at_any_boundary_a_hundred_times(place: Place) -> None:
    kill_at_boundaries(place, 34)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_with_the_queue_elsewhere_a_death_loses_no_tick_and_stores_no_job_twice(
    place: Place, boundary: str, tmp_path: Path
) -> None:
    elsewhere = place.new_queue(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    in_a_process_that_dies(partial(claim_and_die, place, elsewhere, boundary, TICK))
    with place.store.claiming("often", TICK, by="next") as claim:
        assert (claim.outcome is Claimed.WON) == (boundary != "after the commit")
        if claim.outcome is Claimed.WON:
            assert claim.session is not None and not elsewhere.shares(claim.session)
            elsewhere.enqueue([Job(task="report", id=tick_id("often", TICK), max_attempts=3)])
    assert [row.job.id for row in elsewhere.jobs()] == [tick_id("often", TICK)]


def test_a_failed_enqueue_takes_the_claim_back_with_it(place: Place) -> None:
    place.tasks.schedule("report", every=SECOND)
    scheduler = place.scheduler()
    real = place.queue.enqueue_in
    failures = [OSError("disk full"), OSError("disk full")]

    def enqueue_in(session: Any, jobs: Any) -> list[str]:
        stored = real(session, jobs)
        if failures:
            raise failures.pop()
        return stored

    place.queue.enqueue_in = enqueue_in  # type: ignore[method-assign]
    scheduler.start()
    eventually(place.jobs, 20)
    scheduler.stop()
    assert scheduler.join(10)
    assert failures == []
    latest = place.store.latest(["report"])["report"]
    assert max(job.payload["scheduled_for"] for job in place.jobs()) == latest.isoformat()


def test_workers_see_a_ticks_job_when_its_claim_is_there(place: Place) -> None:
    place.tasks.schedule("report", every=SECOND, payload={"n": 1})
    scheduler = place.scheduler()
    scheduler.start()
    jobs = eventually(place.jobs, 20, until=lambda found: len(found) >= 2)
    scheduler.stop()
    assert scheduler.join(10)
    for job in jobs:
        tick = datetime.fromisoformat(job.payload["scheduled_for"])
        assert job.id == tick_id("report", tick)
        assert job.payload["n"] == 1
        assert job.created_at is not None and job.created_at >= tick


def test_somebody_stopped_inside_a_tick_delays_no_other_schedule(
    on_postgres: Place, caplog: pytest.LogCaptureFixture
) -> None:
    on_postgres.tasks.schedule("report", every=SECOND, name="stuck")
    on_postgres.tasks.schedule("report", every=SECOND, name="free")
    stopped = SqlTickStore(on_postgres.new_queue().database)
    first = stopped.now().replace(microsecond=0) + 2 * SECOND
    with stopped.claiming("stuck", first, by="stopped") as claim:
        assert claim.outcome is Claimed.WON
        scheduler = on_postgres.scheduler()
        scheduler.start()

        def delays() -> list[timedelta]:
            ticks = {tick_id("free", first + at * SECOND): first + at * SECOND for at in range(1, 60)}
            return [job.created_at - ticks[job.id] for job in on_postgres.jobs() if job.id in ticks and job.created_at]

        found = eventually(delays, 30, until=lambda delays: len(delays) >= 3)
        assert max(found) < 2 * SECOND
    scheduler.stop()
    assert scheduler.join(10)
    assert [record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_a_pass_without_a_due_tick_is_one_statement_and_none_on_sqlite(place: Place) -> None:
    place.tasks.schedule("report", cron="0 0 1 1 *")
    scheduler = place.scheduler()
    scheduler._step()
    said: list[str] = []
    for engine in (place.queue.database.engine, place.queue.database.control):
        event.listen(engine, "before_cursor_execute", lambda *call: said.append(call[2]))
    assert scheduler._step() == 30.0
    assert said == ([] if place.queue.database.dialect == "sqlite" else ["SELECT clock_timestamp()"])


def test_a_clock_put_back_on_a_shared_database_fires_nothing_twice(sqlite_dsn: str) -> None:
    place = Place(sqlite_dsn)
    clock = FakeClock()
    store = SqlTickStore(place.queue.database, clock=clock)
    place.tasks.schedule("report", every=timedelta(minutes=1))
    scheduler = place.scheduler(store=store)
    scheduler._step()
    clock.advance(60)
    scheduler._step()
    assert len(place.jobs()) == 1
    clock.advance(-3600)
    restarted = place.scheduler(store=store)
    for _ in range(60):
        scheduler._step()
        restarted._step()
        clock.advance(60)
    assert len(place.jobs()) == 1
    clock.advance(60)
    restarted._step()
    scheduler._step()
    assert len(place.jobs()) == 2
    place.close()
