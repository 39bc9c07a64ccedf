"""The scheduler on real databases: a claim and its job share their fate, and nobody waits for somebody stopped."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import event

from jfast_sync.ports import Claimed, ClaimLostError, TickStore
from jfast_sync.scheduler.scheduler import _TooLateError
from jfast_sync.schedules import Every
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.ticks.redis import RedisTickStore
from jfast_sync.ticks.sql import SqlTickStore
from tests.clock import FakeClock
from tests.integration.scheduler_place import Place, on_postgres, place
from tests.waiting import eventually

__all__ = ["on_postgres", "place"]

SECOND = timedelta(seconds=1)


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
    with suppress(ClaimLostError), stopped.claiming("stuck", first, by="stopped") as claim:
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
    assert on_postgres.queue.find(tick_id("stuck", first)) is None  # the next ones have taken its place
    said = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [line for line in said if not line.startswith("schedule stuck: the tick of ")] == []


def test_a_tick_that_is_not_made_up_for_is_left_out_where_its_claim_took_too_long(place: Place) -> None:
    made = place.tasks.schedule("report", every=timedelta(hours=1), catch_up=False)
    scheduler = place.scheduler()
    tick = place.store.now() - timedelta(seconds=59)
    real = place.queue.enqueue_in

    def enqueue_in(session: Any, jobs: Any) -> list[str]:
        stored = real(session, jobs)
        scheduler._time._read = (tick + timedelta(seconds=80), time.monotonic())  # it was stopped
        return stored

    place.queue.enqueue_in = enqueue_in  # type: ignore[method-assign]
    with pytest.raises(_TooLateError):
        scheduler._claim(made, tick)
    assert place.jobs() == []
    assert place.store.latest(["report"]) == {}


def test_a_pass_without_a_due_tick_is_one_statement_and_none_on_sqlite(place: Place) -> None:
    place.tasks.schedule("report", cron="0 0 1 1 *")
    scheduler = place.scheduler()
    scheduler._step()
    said: list[str] = []
    for engine in (place.queue.database.engine, place.queue.database.control):
        event.listen(engine, "before_cursor_execute", lambda *call: said.append(call[2]))
    assert scheduler._step() == 30.0
    assert said == ([] if place.queue.database.dialect == "sqlite" else ["SELECT clock_timestamp()"])


@pytest.mark.parametrize(("catch_up", "made_up"), [(True, 1), (False, 0)])
def test_after_a_week_of_downtime_one_late_tick_fires_or_none(place: Place, catch_up: bool, made_up: int) -> None:
    length = timedelta(minutes=5)
    for name in ("often", "also new"):
        place.tasks.schedule("report", every=length, name=name, catch_up=catch_up)
    latest = Every(length).next(place.store.now())
    place.store.now = lambda: latest + timedelta(minutes=2)  # type: ignore[method-assign]
    with place.store.claiming("often", latest - timedelta(days=7), by="before") as claim:
        assert claim.outcome is Claimed.WON
    for _ in range(2):
        scheduler = place.scheduler()
        assert scheduler._step() > 0
        assert scheduler._step() > 0
    assert [job.id for job in place.jobs()] == [tick_id("often", latest)] * made_up
    assert place.store.latest(["also new"]) == {}


@pytest.mark.long
def test_a_schedule_an_hour_away_costs_no_statement_for_twenty_five_seconds(place: Place) -> None:
    away = place.store.now() + timedelta(hours=1)
    place.tasks.schedule("report", cron=f"{away.minute} {away.hour} * * *")
    scheduler = place.scheduler()
    scheduler.start()
    eventually(lambda: scheduler.health().meta.get("count") == 1 and place.store.now())
    said: list[str] = []
    for engine in (place.queue.database.engine, place.queue.database.control):
        event.listen(engine, "before_cursor_execute", lambda *call: said.append(call[2]))
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 25, 60, interval=0.5)
    assert said == []
    scheduler.stop()
    assert scheduler.join(10)


def test_a_clock_put_back_an_hour_fires_nothing_twice(place: Place) -> None:
    put_back_an_hour(place, place.store)


def test_a_clock_put_back_an_hour_fires_nothing_twice_from_redis(sqlite_dsn: str, redis_url: str) -> None:
    place, store = Place(sqlite_dsn), RedisTickStore(Redis.from_url(redis_url))
    put_back_an_hour(place, store)
    store.close()
    place.close()


def put_back_an_hour(place: Place, store: TickStore) -> None:
    clock = FakeClock()
    store.now = clock.now  # type: ignore[method-assign]
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
