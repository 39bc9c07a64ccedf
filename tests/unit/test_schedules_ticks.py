"""What a tick is called, and which one is due."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from jfast_sync.errors import ScheduleError
from jfast_sync.schedules import Cron, Every
from jfast_sync.schedules.ticks import Due, due, jitter_of, missed, tick_id

NIGHTLY = Cron("0 3 * * *")
NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_the_id_of_a_tick_is_the_siblings():
    assert tick_id("nightly", datetime(2026, 1, 1, 3, tzinfo=UTC)) == "7dc88746ad575133becd74212beb207c"
    in_madrid = datetime(2026, 1, 1, 4, tzinfo=timezone(HOUR))
    assert tick_id("nightly", in_madrid) == "7dc88746ad575133becd74212beb207c"


def test_a_new_schedule_starts_at_its_next_tick():
    assert due(NIGHTLY, since=None, now=NOON) == Due(None, datetime(2026, 1, 11, 3, tzinfo=UTC))


def test_a_tick_is_due_from_its_instant_on():
    since, tick = datetime(2026, 1, 9, 3, tzinfo=UTC), datetime(2026, 1, 10, 3, tzinfo=UTC)
    assert due(NIGHTLY, since=since, now=tick - timedelta(microseconds=1)) == Due(None, tick)
    assert due(NIGHTLY, since=since, now=tick) == Due(tick, tick + timedelta(days=1))


def test_after_a_week_the_latest_tick_fires_and_no_other():
    every = Every(timedelta(minutes=5))
    since = NOON - timedelta(days=7)
    found = due(every, since=since, now=NOON + timedelta(minutes=3))
    assert found == Due(NOON, NOON + timedelta(minutes=5))
    assert missed(every, since=since, before=NOON, at_most=9999) == 2015
    assert missed(every, since=since, before=NOON, at_most=100) == 100


def test_without_catching_up_a_late_tick_does_not_fire():
    since = NOON - timedelta(days=7)
    tomorrow = datetime(2026, 1, 11, 3, tzinfo=UTC)
    assert due(NIGHTLY, since=since, now=NOON, late=timedelta(minutes=1)) == Due(None, tomorrow)
    just_now = tomorrow + timedelta(seconds=59)
    assert due(NIGHTLY, since=since, now=just_now, late=timedelta(minutes=1)).fires == tomorrow


def test_a_clock_put_back_fires_nothing_twice():
    hourly = Cron("0 * * * *")
    assert due(hourly, since=NOON, now=NOON - HOUR) == Due(None, NOON + HOUR)
    assert due(hourly, since=NOON + timedelta(days=1), now=NOON) == Due(None, NOON + timedelta(hours=25))


@pytest.mark.parametrize("recurrence", [Cron("* * * * *", "Europe/Madrid"), Every(timedelta(seconds=1)), NIGHTLY])
def test_a_decade_of_missed_ticks_costs_no_walk_through_them(recurrence):
    began = time.thread_time()
    found = due(recurrence, since=NOON - timedelta(days=3650), now=NOON)
    assert time.thread_time() - began < 0.2
    assert found.fires is not None and found.fires <= NOON < found.next
    assert recurrence.next(found.fires) == found.next
    assert due(recurrence, since=found.fires - timedelta(microseconds=1), now=NOON) == found


@pytest.mark.parametrize("offset", range(0, 120, 7))
def test_the_latest_tick_is_found_among_ticks_at_uneven_distances(offset):
    cron = Cron("1,2,3,30,58 1,2,23 * * *", "America/New_York")
    now = datetime(2025, 11, 2, 4, 57, tzinfo=UTC) + timedelta(minutes=offset)
    walked = [tick for tick, _ in zip(cron.next_many(now - timedelta(days=3)), range(99), strict=False) if tick <= now]
    assert due(cron, since=now - timedelta(days=3), now=now).fires == walked[-1]


def test_jitter_is_the_same_everywhere_and_within_its_bounds():
    jitter = timedelta(minutes=10)
    delays = [jitter_of(tick_id(f"schedule-{number}", NOON), jitter) for number in range(200)]
    assert delays == [jitter_of(tick_id(f"schedule-{number}", NOON), jitter) for number in range(200)]
    assert all(timedelta(0) <= delay < jitter for delay in delays)
    assert max(delays) - min(delays) > timedelta(minutes=8)


@pytest.mark.parametrize(
    "length", [timedelta(0), timedelta(seconds=-5), timedelta(milliseconds=999), timedelta.max, 5, None]
)
def test_an_interval_that_cannot_be_is_refused(length):
    with pytest.raises(ScheduleError, match="an interval"):
        Every(length)


def test_intervals_do_not_drift_and_have_no_gaps():
    tick = NOON + timedelta(microseconds=1)
    for expected in range(1, 31):
        tick = Every(timedelta(seconds=1)).next(tick)
        assert tick == NOON + timedelta(seconds=expected)
    assert Every(timedelta(seconds=1.5)).next(NOON) == NOON + timedelta(seconds=1.5)


def test_an_interval_before_the_epoch_and_at_the_calendars_end():
    assert Every(timedelta(hours=1)).next(datetime(1969, 12, 31, 23, 30, tzinfo=UTC)) == datetime(
        1970, 1, 1, tzinfo=UTC
    )
    with pytest.raises(ScheduleError, match="a datetime can hold"):
        Every(timedelta(hours=1)).next(datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("length", "spoken"),
    [
        (timedelta(seconds=1), "every 1s"),
        (timedelta(seconds=90), "every 1m30s"),
        (timedelta(minutes=5), "every 5m"),
        (timedelta(hours=25), "every 1d1h"),
        (timedelta(days=7), "every 7d"),
        (timedelta(seconds=1.5), "every 1.5s"),
    ],
)
def test_an_interval_says_its_length(length, spoken):
    assert str(Every(length)) == spoken
