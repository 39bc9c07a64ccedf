"""Zones that are there, zones that are not, and what their clocks' changes do to ticks."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

from jfast_sync.errors import ScheduleError
from jfast_sync.schedules import Cron
from jfast_sync.schedules.zones import change_between, zone


@pytest.mark.parametrize(
    "name",
    [
        "Mars/Olympus",
        "",
        " ",
        "../etc/passwd",
        "/etc/localtime",
        "America",  # a folder
        "zone.tab",  # a file, but no zone
        "Europe/Madrid/x",
        "Europe/Mad\0rid",
        "right/UTC",  # counts leap seconds
        "x" * 5000,
        "Europe/Madrid\n",
        None,
        UTC,
    ],
)
def test_a_zone_that_is_not_there_is_refused_by_name(name):
    with pytest.raises(ScheduleError, match="time zone") as caught:
        Cron("0 3 * * *", name)
    assert repr(name)[:60] in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("Europe/Madrit", "Europe/Madrid"), ("america/new york", "America/New_York"), ("utc", "UTC")],
)
def test_the_nearest_zone_is_named(wrong, right):
    with pytest.raises(ScheduleError, match=f"did you mean .*{right}"):
        Cron("0 3 * * *", wrong)


@pytest.mark.parametrize("name", ["localtime", "posixrules", "Factory"])
def test_what_is_another_zone_on_every_machine_is_refused(name):
    with pytest.raises(ScheduleError, match="another one on every machine; write the name of the place"):
        Cron("0 3 * * *", name)


@pytest.mark.parametrize("name", ["+02:00", "UTC+2", "gmt-03", "-0500"])
def test_an_offset_is_no_zone_and_what_to_write_is_said(name):
    with pytest.raises(ScheduleError, match=r'write the name of the place, like "Europe/Madrid".*Etc/GMT-2'):
        Cron("0 3 * * *", name)
    assert Cron("0 3 * * *", "Etc/GMT-2").next(datetime(2026, 1, 1, tzinfo=UTC)).hour == 1


WITHOUT_DATA = """
import sys
from contextlib import suppress
from datetime import UTC, datetime
sys.modules["tzdata"] = None  # as if it were not installed
from jfast_sync.errors import ScheduleError
from jfast_sync.schedules import Cron
print(Cron("0 3 * * *").next(datetime(2026, 1, 1, tzinfo=UTC)).isoformat())
try:
    Cron("0 3 * * *", "Europe/Madrid")
except ScheduleError as exc:
    print(exc)
"""


def test_without_any_zone_data_only_utc_works_and_the_fix_is_said():
    environment = {**os.environ, "PYTHONTZPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DATA], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    utc, refused = done.stdout.splitlines()
    assert utc == "2026-01-01T03:00:00+00:00"
    assert "'Europe/Madrid'" in refused and "pip install tzdata" in refused


def test_a_fixed_offset_of_the_question_does_not_replace_the_zone():
    asked = datetime(2025, 3, 9, 20, tzinfo=timezone(timedelta(hours=-5)))
    assert Cron("0 9 * * *", "America/New_York").next(asked).isoformat() == "2025-03-10T13:00:00+00:00"


def test_a_naive_question_is_refused():
    with pytest.raises(ScheduleError, match="naive"):
        Cron("0 9 * * *").next(datetime(2025, 1, 1))  # noqa: DTZ001
    with pytest.raises(ScheduleError, match="aware datetime"):
        Cron("0 9 * * *").next("2025-01-01")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expression", "start", "expected"),
    [
        # Half an hour is jumped over: 02:15 becomes 02:45.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2025-10-04T12:00Z",
            ["2025-10-04T15:45", "2025-10-05T15:15"],
        ),
        # A whole day does not exist: Friday the 30th of December 2011 in Samoa.
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-01T00:00Z", ["2011-12-30T22:00", "2012-12-29T22:00"]),
        ("Pacific/Apia", "0 12 * * *", "2011-12-29T00:00Z", ["2011-12-29T22:00", "2011-12-30T22:00"]),
        # A fold across midnight with every hour open: 23:30 comes twice.
        (
            "America/Havana",
            "30 * * * *",
            "2025-11-02T03:45Z",
            ["2025-11-02T04:30", "2025-11-02T05:30", "2025-11-02T06:30"],
        ),
        # Once a year, at a time that happens twice that day, with every hour open.
        ("Europe/Madrid", "30 * 26 10 *", "2025-10-26T00:00Z", ["2025-10-26T00:30", "2025-10-26T01:30"]),
        # Daylight saving time by whole two hours.
        ("Antarctica/Troll", "30 1 * * *", "2025-03-29T12:00Z", ["2025-03-30T01:30", "2025-03-30T23:30"]),
        # An offset with seconds, before 1972.
        ("Africa/Monrovia", "0 12 * * *", "1970-06-01T00:00Z", ["1970-06-01T12:44:30", "1970-06-02T12:44:30"]),
    ],
)
def test_changes_of_the_clock(name, expression, start, expected):
    ticks = islice(Cron(expression, name).next_many(datetime.fromisoformat(start)), len(expected))
    assert [tick.isoformat().removesuffix("+00:00").removesuffix(":00") for tick in ticks] == expected


def test_a_change_is_found_to_the_second():
    madrid = zone("Europe/Madrid")
    change = change_between(madrid, datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    assert change is not None
    assert (change.at, change.jump) == (datetime(2025, 3, 30, 1, tzinfo=UTC), timedelta(hours=1))
    assert change_between(madrid, change.at, change.at + timedelta(days=100)) is None
    assert change_between(UTC, datetime(2000, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("expression", "start", "effects"),
    [
        ("30 2 * * *", "2025-03-29T12:00Z", ["moved", None]),
        ("0,30 2,3 * * *", "2025-03-30T00:30Z", [None, None, None]),  # 3:00 and 3:30 are there
        ("*/20 * * * *", "2025-03-30T00:50Z", [None, None, None]),
        ("30 2 * * *", "2025-10-25T12:00Z", ["only first of two", None]),
        ("30 * * * *", "2025-10-25T23:45Z", ["first of two", "second of two", None]),
    ],
)
def test_what_a_change_does_to_a_tick_is_said(expression, start, effects):
    cron = Cron(expression, "Europe/Madrid")
    ticks = islice(cron.next_many(datetime.fromisoformat(start)), len(effects))
    assert [cron.effect(tick) for tick in ticks] == effects


def test_a_schedule_may_be_asked_from_many_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    cron = Cron("*/7 * * * *", "Europe/Madrid")
    starts = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(400)]
    expected = [cron.next(start) for start in starts]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(cron.next, starts)) == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Madrid", "Asia/Tokyo", "America/New_York"])
def test_schedules_tick_at_both_ends_of_the_calendar(zone):
    cron = Cron("0 12 * * *", zone)
    assert cron.next(datetime(1, 1, 1, tzinfo=UTC)).year == 1
    found = list(until_the_end(cron, datetime(9999, 12, 29, 23, tzinfo=UTC)))
    assert [cron.local(tick).replace(tzinfo=None) for tick in found] == [
        datetime(9999, 12, 30, 12),  # noqa: DTZ001 - a wall clock's
        datetime(9999, 12, 31, 12),  # noqa: DTZ001
    ]


def until_the_end(cron, after):
    with suppress(ScheduleError):
        yield from cron.next_many(after)
