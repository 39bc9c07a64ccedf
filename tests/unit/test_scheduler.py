"""Passes of the scheduler over a clock that a test moves: what is enqueued, when, and what happens on failure."""

from __future__ import annotations

import logging
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Job
from jfast_sync.ports import Claimed, TickClaim
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.scheduler import Scheduler, tick_job
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.tasks import task
from jfast_sync.tasks.declarations import isolated
from jfast_sync.tasks.registry import Registry
from jfast_sync.ticks.memory import MemoryTickStore
from tests.clock import FakeClock
from tests.waiting import eventually

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)  # where the clock stands
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Bench:
    """One store, one queue, and schedulers that stand for processes."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Any = MemoryTickStore(self.clock)
        self.queue: Any = MemoryQueue(clock=self.clock)
        self.tasks = Registry()

    def schedule(self, name: str, **options: Any) -> None:
        self.tasks.schedule("report", name=name, **options)

    def scheduler(self) -> Scheduler:
        return Scheduler(self.store, self.queue, self.tasks, prepare=lambda job: replace(job, max_attempts=3))

    def jobs(self) -> list[Job]:
        return sorted((row.job for row in self.queue.jobs(limit=9999)), key=lambda job: job.payload["scheduled_for"])

    def fired(self) -> list[str]:
        return [job.payload["scheduled_for"][11:19] for job in self.jobs()]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with isolated():
        made = Bench()
        steady = SimpleNamespace(monotonic=lambda: made.clock.now().timestamp())
        monkeypatch.setattr("jfast_sync.scheduler.store_time.time", steady)  # both clocks are the test's

        @task("report", queue="reports", priority=3)
        def report(payload: dict) -> None: ...

        yield made
        made.queue.close()


def test_a_tick_becomes_a_job_at_its_instant(bench: Bench) -> None:
    bench.schedule("report-hourly", cron="30 * * * *", payload={"days": 7}, max_attempts=5)
    scheduler = bench.scheduler()
    assert scheduler._step() == 30.0
    bench.clock.advance(30 * 60 - 1)
    assert scheduler._step() == pytest.approx(1.0, abs=0.1)
    assert bench.jobs() == []
    bench.clock.advance(1)
    assert scheduler._step() == 30.0
    (job,) = bench.jobs()
    tick = NOON + 30 * MINUTE
    assert job.id == tick_id("report-hourly", tick)
    assert job.payload == {"days": 7, "scheduled_for": "2026-01-01T12:30:00+00:00"}
    assert (job.task, job.queue, job.priority, job.max_attempts) == ("report", "reports", 3, 3)
    assert (job.tenant_id, job.request_id, job.trace, job.available_at) == (None, None, None, NOON + 30 * MINUTE)
    scheduler._step()
    assert len(bench.jobs()) == 1


def test_a_schedules_own_attempts_and_jitter_are_its_jobs() -> None:
    with isolated():
        tasks = Registry()
        made = tasks.schedule("report", every=HOUR, jitter=10 * MINUTE, max_attempts=2, payload={"a": 1})
        job = tick_job(made, NOON, tasks)
        assert (job.max_attempts, job.queue, job.priority) == (2, "default", 0)
        assert job.available_at is not None and NOON <= job.available_at < NOON + 10 * MINUTE
        assert job == replace(tick_job(made, NOON, tasks))
        by_hand = tick_job(made, NOON, tasks, by_hand=True)
        assert by_hand.id != job.id and by_hand.available_at is None
        assert by_hand.payload == job.payload == {"a": 1, "scheduled_for": NOON.isoformat()}


def test_a_new_schedule_starts_at_its_next_tick(bench: Bench) -> None:
    bench.schedule("nightly", cron="0 3 * * *")
    scheduler = bench.scheduler()
    for _ in range(3):
        scheduler._step()
    assert bench.jobs() == []


@pytest.mark.parametrize(("catch_up", "fired"), [(True, ["12:00:00"]), (False, [])])
def test_after_a_week_one_late_tick_fires_or_none(bench: Bench, catch_up: bool, fired: list[str]) -> None:
    bench.schedule("often", every=5 * MINUTE, catch_up=catch_up)
    bench.store._latest["often"] = NOON - timedelta(days=7)
    bench.clock.advance(3 * 60)
    scheduler = bench.scheduler()
    for _ in range(3):
        scheduler._step()
    assert bench.fired() == fired
    bench.clock.advance(2 * 60)
    scheduler._step()
    assert bench.fired() == [*fired, "12:05:00"]


def test_a_pass_that_comes_late_fires_the_latest_tick_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.schedule("often", every=MINUTE)
    bench.schedule("strict", every=MINUTE, catch_up=False)
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(10)
    bench.clock.advance(590)
    scheduler._step()
    assert bench.fired() == ["12:10:00", "12:10:00"]
    assert "schedule often: the tick of 2026-01-01T12:10:00+00:00 fires 0:00:00 late; 9 before it are skipped" in (
        caplog.text
    )
    caplog.clear()
    bench.clock.advance(60 + 30)
    scheduler._step()
    assert bench.fired()[2:] == ["12:11:00", "12:11:00"]  # half a minute is not late
    assert "late" not in caplog.text


def test_a_very_late_tick_is_said_and_its_predecessors_are_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.schedule("hourly", every=HOUR)
    bench.store._latest["hourly"] = NOON - timedelta(hours=5)
    bench.clock.advance(1800)
    bench.scheduler()._step()
    assert "schedule hourly: the tick of 2026-01-01T12:00:00+00:00 fires 0:30:00 late; 4 before it are skipped" in (
        caplog.text
    )


def test_a_clock_put_back_fires_nothing_twice(bench: Bench) -> None:
    bench.schedule("hourly", cron="0 * * * *")
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(3600)
    scheduler._step()
    assert bench.fired() == ["13:00:00"]
    bench.clock.advance(-3600)
    restarted = bench.scheduler()
    for _ in range(61):
        scheduler._step()
        restarted._step()
        bench.clock.advance(60)
    assert bench.fired() == ["13:00:00"]
    bench.clock.advance(3600)
    restarted._step()
    scheduler._step()
    assert bench.fired() == ["13:00:00", "14:00:00"]


def test_a_clock_that_was_a_day_ahead_makes_nobody_spin(bench: Bench) -> None:
    bench.schedule("hourly", cron="0 * * * *")
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(86_400)
    scheduler._step()
    bench.clock.advance(-86_400)
    assert scheduler._step() == 30.0
    assert len(bench.jobs()) == 1


def test_of_two_processes_one_enqueues_each_tick(bench: Bench) -> None:
    bench.schedule("often", every=MINUTE)
    one, other = bench.scheduler(), bench.scheduler()
    for at in range(6):
        for scheduler in (one, other) if at % 2 else (other, one):
            scheduler._step()
        bench.clock.advance(60)
    assert bench.fired() == [f"12:0{minute}:00" for minute in range(1, 6)]
    assert one.name != other.name


def failing(bench: Bench, task_payload: dict[str, Any]) -> Callable[[], None]:
    """Let the queue refuse jobs with this payload, until the returned function is called."""
    real, refusing = bench.queue.enqueue, [True]

    def enqueue(jobs: list[Job]) -> list[str]:
        if refusing and any(task_payload.items() <= job.payload.items() for job in jobs):
            raise UnavailableError("the queue is away")
        return list(real(jobs))

    bench.queue.enqueue = enqueue
    return refusing.clear


def test_a_schedule_that_fails_is_tried_again_and_touches_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.schedule("bad", every=MINUTE, payload={"bad": 1})
    bench.schedule("good", every=MINUTE)
    mend = failing(bench, {"bad": 1})
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    wait = scheduler._step()
    assert 0 < wait <= 0.5
    assert [job.id for job in bench.jobs()] == [tick_id("good", NOON + MINUTE)]
    assert bench.store.latest(["bad"]) == {}  # given back
    for _ in range(3):
        bench.clock.advance(5)
        scheduler._step()
    assert caplog.text.count("schedule bad: the tick of 2026-01-01T12:01:00+00:00 is tried again") == 1
    health = scheduler.health()
    assert health.status == "degraded"
    assert "schedule bad fails: UnavailableError: the queue is away" in health.detail
    assert health.meta["schedules"]["bad"] == {
        "next": "2026-01-01T12:01:00+00:00",
        "last": None,
        "error": "UnavailableError: the queue is away",
    }
    mend()
    bench.clock.advance(5)
    scheduler._step()
    assert {job.id for job in bench.jobs()} == {tick_id(name, NOON + MINUTE) for name in ("good", "bad")}
    assert scheduler.health().meta["schedules"]["bad"] == {
        "next": "2026-01-01T12:02:00+00:00",
        "last": "2026-01-01T12:01:00+00:00",
        "error": None,
    }


def test_many_failing_schedules_are_counted(bench: Bench) -> None:
    for number in range(8):
        bench.schedule(f"bad-{number}", every=MINUTE)
    failing(bench, {})
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    scheduler._step()
    health = scheduler.health()
    assert health.detail.count("the queue is away") == 5
    assert health.detail.endswith("3 more schedules fail")
    assert len(health.meta["schedules"]) == 8


def test_a_repetition_does_not_wait_for_a_clock_that_was_put_back(bench: Bench) -> None:
    bench.schedule("bad", every=MINUTE)
    mend = failing(bench, {})
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(90)
    scheduler._step()
    mend()
    bench.clock.advance(-20)
    scheduler._step()
    assert bench.fired() == ["12:01:00"]


class BusyStore(MemoryTickStore):
    """Somebody was stopped while claiming ticks of one schedule."""

    held = "stuck"

    @contextmanager
    def claiming(self, name: str, tick: datetime, *, by: str) -> Iterator[TickClaim]:
        if name == self.held:
            yield TickClaim(outcome=Claimed.BUSY)
            return
        with super().claiming(name, tick, by=by) as claim:
            yield claim


def test_a_tick_somebody_else_is_at_is_asked_for_again_and_is_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store = BusyStore(bench.clock)
    bench.schedule("stuck", every=MINUTE)
    bench.schedule("free", every=MINUTE)
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    assert scheduler._step() <= 0.2
    assert [job.id for job in bench.jobs()] == [tick_id("free", NOON + MINUTE)]
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    bench.store.held = ""
    bench.clock.advance(1)
    scheduler._step()
    assert len(bench.jobs()) == 2


def test_a_tick_that_somebody_holds_for_half_a_minute_is_said_once_and_degrades(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store = BusyStore(bench.clock)
    bench.schedule("stuck", cron="* * * * *")
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    for _ in range(8):
        scheduler._step()
        bench.clock.advance(5)
    assert "somebody else holds its claim" in scheduler.health().detail
    for _ in range(3):
        scheduler._step()
        bench.clock.advance(5)
    assert caplog.text.count("stuck: the tick of 2026-01-01T12:01:00+00:00 is tried again: somebody else holds") == 1
    bench.store.held = ""
    scheduler._step()
    assert "is overdue" not in scheduler.health().detail and "holds" not in scheduler.health().detail
    assert bench.fired() == ["12:01:00"]


def test_ready_names_an_overdue_tick_also_while_the_store_does_not_answer(bench: Bench) -> None:
    bench.schedule("often", every=MINUTE)
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(90)
    assert "overdue" not in scheduler.health().detail
    bench.clock.advance(1)
    assert (
        "schedule often is overdue: nobody has claimed the tick of 2026-01-01T12:01:00+00:00"
        in scheduler.health().detail
    )
    scheduler._step()
    assert "overdue" not in scheduler.health().detail


def test_a_latest_claim_that_lies_in_the_future_is_said_and_degrades(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.schedule("often", every=MINUTE)
    bench.store._latest["often"] = NOON + timedelta(days=365)
    scheduler = bench.scheduler()
    scheduler._step()
    assert "schedule often is silent: its latest claim is of 2027-01-01T12:00:00+00:00" in scheduler.health().detail
    assert caplog.text.count("1 schedules are silent until the store's clock has passed their latest claim: often") == 1


def test_a_claim_of_the_future_is_noticed_while_it_runs(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.schedule("often", every=MINUTE)
    scheduler = bench.scheduler()
    scheduler._step()
    bench.store._latest["often"] = NOON + timedelta(days=365)
    for _ in range(2):
        scheduler._keep_house_at = 0.0
        bench.clock.advance(60)
        scheduler._step()
    assert "schedule often is silent: its latest claim is of 2027-01-01T12:00:00+00:00" in scheduler.health().detail
    assert caplog.text.count("1 schedules are silent until the store's clock has passed their latest claim: often") == 1


@pytest.mark.parametrize(("absent", "fired"), [(50, ["12:01:00"]), (90, [])])
def test_without_catching_up_a_process_that_was_away_for_a_moment_misses_nothing(
    bench: Bench, absent: int, fired: list[str]
) -> None:
    bench.schedule("hourly", cron="1 12 * * *", catch_up=False)
    bench.store._latest["hourly"] = NOON - timedelta(days=1) + MINUTE
    bench.clock.advance(60 + absent)
    bench.scheduler()._step()
    assert bench.fired() == fired


def test_a_tick_given_up_without_catching_up_is_said_and_leaves_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.schedule("strict", every=HOUR, catch_up=False)
    mend = failing(bench, {})
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(3600)
    scheduler._step()
    assert "the queue is away" in scheduler.health().detail
    bench.clock.advance(61)
    scheduler._step()
    mend()
    assert "schedule strict: 1 ticks before that of 2026-01-01T14:00:00+00:00 are skipped" in caplog.text
    assert scheduler.health().meta["schedules"]["strict"]["error"] is None
    assert "strict" not in scheduler.health().detail
    bench.clock.advance(3600 - 61)
    scheduler._step()
    assert bench.fired() == ["14:00:00"]


def test_what_another_process_has_claimed_meanwhile_is_not_called_skipped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name, catch_up in (("often", True), ("strict", False)):
        bench.schedule(name, every=MINUTE, catch_up=catch_up)
    slow, quick = bench.scheduler(), bench.scheduler()
    slow._step()
    for _ in range(5):
        quick._step()
        bench.clock.advance(60)
    slow._step()
    assert bench.fired()[-2:] == ["12:05:00", "12:05:00"]
    assert "skipped" not in caplog.text


def test_thousands_of_late_ticks_are_a_few_lines(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(200):
        bench.schedule(f"hourly-{number}", every=HOUR)
        bench.store._latest[f"hourly-{number}"] = NOON - HOUR
    bench.clock.advance(1800)
    bench.scheduler()._step()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(bench.jobs()) == 200
    assert said[5:] == ["195 more ticks fail, come late or leave others out"]


class SlowStore(MemoryTickStore):
    """Each claim takes some seconds."""

    takes = 0.0

    @contextmanager
    def claiming(self, name: str, tick: datetime, *, by: str) -> Iterator[TickClaim]:
        self._clock.advance(self.takes)  # type: ignore[union-attr]
        with super().claiming(name, tick, by=by) as claim:
            yield claim


def steps(bench: Bench, scheduler: Scheduler, seconds: float) -> None:
    end = bench.clock.now() + timedelta(seconds=seconds)
    while bench.clock.now() < end:
        if pause := scheduler._step():
            bench.clock.advance(pause)


def test_of_many_that_are_due_the_one_whose_next_tick_comes_first_is_first(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store = SlowStore(bench.clock)
    bench.schedule("every second", every=timedelta(seconds=1))
    for number in range(300):
        bench.schedule(f"minutely-{number}", every=MINUTE)
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    bench.store.takes = 0.1
    steps(bench, scheduler, 40)
    fired = bench.fired()
    assert fired.count("12:01:00") == 301
    assert fired[301:] == [f"12:01:{second:02}" for second in range(1, len(fired) - 300)]
    assert len(fired) >= 301 + 30  # no second is left out
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in said if " 0 before it" not in line and "more ticks" not in line] == [
        "schedule every second: the tick of 2026-01-01T12:01:00+00:00 fires 0:00:00 late; 59 before it are skipped"
    ]


def test_after_a_downtime_what_ticks_often_does_not_wait_for_what_is_made_up_for(bench: Bench) -> None:
    bench.store = SlowStore(bench.clock)
    bench.schedule("every second", every=timedelta(seconds=1))
    for number in range(100):
        bench.schedule(f"daily-{number}", cron="0 6 * * *")
        bench.store._latest[f"daily-{number}"] = NOON - timedelta(days=3, hours=6)
    bench.store._latest["every second"] = NOON - timedelta(days=3)
    bench.store.takes = 0.1
    steps(bench, bench.scheduler(), 15)
    fired = bench.fired()
    assert fired.count("06:00:00") == 100
    assert fired[100:] == [f"12:00:{second:02}" for second in range(len(fired) - 100)]
    assert len(fired) >= 100 + 10


def test_no_schedule_waits_for_its_next_tick_behind_those_that_tick_often(bench: Bench) -> None:
    bench.store = SlowStore(bench.clock)
    bench.schedule("daily", cron="1 12 * * *")
    for number in range(20):
        bench.schedule(f"often-{number}", every=timedelta(seconds=1))
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    bench.store.takes = 0.2  # four times as much as there is time for
    steps(bench, scheduler, 65)
    assert tick_id("daily", NOON + MINUTE) in {job.id for job in bench.jobs()}


class CountingStore(MemoryTickStore):
    asked = 0

    def now(self) -> datetime:
        self.asked += 1
        return super().now()


def many(bench: Bench, count: int) -> Scheduler:
    for number in range(count):
        bench.schedule(f"s{number}", cron=f"{number % 60} {number % 24} * * *", timezone="Europe/Madrid")
    return bench.scheduler()


def test_ten_thousand_schedules_take_less_than_fifty_megabytes(bench: Bench) -> None:
    many(bench, 100)._step()  # what they share
    bench.tasks = Registry()
    tracemalloc.start()
    scheduler = many(bench, 1000)
    scheduler._step()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 5e6


@pytest.mark.timed
def test_ten_thousand_schedules_cost_a_pass_what_is_due(bench: Bench) -> None:
    bench.store = CountingStore(bench.clock)
    scheduler = many(bench, 10_000)
    scheduler._step()
    costs = []
    for _ in range(20):
        began = time.process_time()
        scheduler._step()
        costs.append(time.process_time() - began)
    assert max(costs) < 0.05
    assert bench.store.asked == 21  # once per pass, and nothing else
    assert len(scheduler.health().meta["schedules"]) == 100
    assert scheduler.health().meta["count"] == 10_000


def test_a_task_nobody_here_knows_is_said_once_and_scheduled(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.tasks.schedule("elsewhere", every=MINUTE)
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    scheduler._step()
    assert [job.task for job in bench.jobs()] == ["elsewhere"]
    assert caplog.text.count("1 schedules are for tasks this process does not know") == 1
    assert f"elsewhere for task elsewhere ({__file__}:" in caplog.text


def test_many_tasks_nobody_here_knows_are_one_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(200):
        bench.tasks.schedule(f"elsewhere-{number:03}", every=MINUTE)
    bench.scheduler()._step()
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith("200 schedules are for tasks this process does not know")
    assert "elsewhere-004" in said and "elsewhere-005" not in said and said.endswith(", ...")


def test_a_schedule_declared_later_begins_at_its_next_tick_and_leaves_the_others_as_they_are(bench: Bench) -> None:
    bench.schedule("bad", every=MINUTE, payload={"bad": 1})
    mend = failing(bench, {"bad": 1})
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(90)
    scheduler._step()
    bench.schedule("late", every=MINUTE)
    bench.clock.advance(10)
    scheduler._step()
    assert bench.jobs() == []
    assert scheduler.health().meta["count"] == 2
    assert scheduler.health().meta["schedules"]["bad"]["error"] == "UnavailableError: the queue is away"
    mend()
    bench.clock.advance(5)
    scheduler._step()
    bench.clock.advance(20)
    scheduler._step()
    assert {job.id for job in bench.jobs()} == {
        tick_id("bad", NOON + MINUTE),
        *(tick_id(name, NOON + 2 * MINUTE) for name in ("bad", "late")),
    }
    assert len(bench.jobs()) == 3


def test_a_schedule_declared_anew_goes_on_with_its_new_times(bench: Bench) -> None:
    def executed() -> Any:
        def report_again() -> None: ...

        return report_again

    task("again", every=MINUTE)(executed())
    bench.tasks = Registry()
    scheduler = bench.scheduler()
    scheduler._step()
    bench.clock.advance(60)
    scheduler._step()
    task("again", every=2 * MINUTE)(executed())  # its module was executed again
    scheduler._step()
    for _ in range(4):
        bench.clock.advance(60)
        scheduler._step()
    assert bench.fired() == ["12:01:00", "12:02:00", "12:04:00"]


def test_a_schedule_with_other_times_than_those_it_was_claimed_for_starts_at_its_next_tick(bench: Bench) -> None:
    bench.schedule("moved", cron="59 11 * * *")
    bench.schedule("as before", cron="59 11 * * *")
    bench.store._latest["moved"] = NOON - timedelta(days=1) + 16 * MINUTE  # from when it was "16 12 * * *"
    bench.store._latest["as before"] = NOON - timedelta(days=1) - MINUTE
    bench.scheduler()._step()
    assert [job.id for job in bench.jobs()] == [tick_id("as before", NOON - MINUTE)]


def test_a_schedule_declared_while_it_sleeps_wakes_it(bench: Bench) -> None:
    bench.store = MemoryTickStore()
    scheduler = bench.scheduler()
    bench.tasks.on_schedule = scheduler.wake
    scheduler.start()
    eventually(lambda: scheduler.health().meta["count"] == 0 and scheduler.health().status == "ok")
    bench.schedule("often", every=timedelta(seconds=1))
    eventually(bench.jobs, 10)
    scheduler.stop()
    assert scheduler.join(5)


def test_without_schedules_it_sleeps(bench: Bench) -> None:
    assert bench.scheduler()._step() == 30.0


def test_a_store_that_is_away_is_waited_for(bench: Bench) -> None:
    bench.schedule("often", every=timedelta(seconds=1))
    away = [True]

    def now() -> datetime:
        if away:
            raise UnavailableError("the database cannot serve")
        return datetime.now(UTC)

    bench.store.now = now
    scheduler = bench.scheduler()
    scheduler.start()
    health = eventually(scheduler.health, until=lambda found: "cannot serve" in found.detail)
    assert health.status == "degraded"
    assert health.detail.startswith("the scheduler fails: UnavailableError")
    away.clear()
    eventually(bench.jobs)
    assert scheduler.health().status == "ok"
    scheduler.stop()
    assert scheduler.join(5)
    assert scheduler.health().detail == "the scheduler has stopped"


def test_one_that_was_never_started_says_so(bench: Bench) -> None:
    scheduler = bench.scheduler()
    assert scheduler.health().detail == "the scheduler does not run"
    assert scheduler.join(1)
