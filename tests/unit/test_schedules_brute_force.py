"""Random expressions against a search that walks through every minute of a wall clock and knows no croniter."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from jfast_sync.schedules import Cron

ZONES = (
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/Caracas",
    "Europe/Madrid",
    "Atlantic/Azores",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Antarctica/Troll",
)
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
MINUTE = timedelta(minutes=1)


def random_field(rng: random.Random, at: int) -> tuple[str, set[int]]:
    """A field's text and the values it stands for, made together."""
    low, high = BOUNDS[at]
    everything = set(range(low, high + 1))
    match rng.randrange(6):
        case 0 | 1:
            return "*", everything
        case 2:
            step = rng.randint(1, min(high - low, 13))
            return f"*/{step}", {value for value in everything if (value - low) % step == 0}
        case 3:
            first, last = sorted(rng.sample(range(low, high + 1), 2))
            return f"{first}-{last}", set(range(first, last + 1))
        case 4:
            first, last = sorted(rng.sample(range(low, high + 1), 2))
            step = rng.randint(1, last - first)
            return f"{first}-{last}/{step}", set(range(first, last + 1, step))
        case _:
            chosen = rng.sample(range(low, high + 1), rng.randint(1, 4))
            return ",".join(map(str, chosen)), set(chosen)


def random_expression(rng: random.Random, hour: int, days_open: float = 0.8) -> tuple[str, list[set[int]], bool]:
    """An expression, half of the time about an hour that the zone's clock leaves out or shows again."""
    while True:
        fields = [random_field(rng, at) for at in range(5)]
        if rng.random() < days_open:  # most windows are a day long
            fields[2:] = [("*", set(range(BOUNDS[at][0], BOUNDS[at][1] + 1))) for at in (2, 3, 4)]
        if rng.random() < 0.5:
            hours = {hour, (hour + rng.randint(-1, 1)) % 24}
            fields[1] = ",".join(map(str, hours)), hours
        texts, sets = [text for text, _ in fields], [values for _, values in fields]
        either = not (texts[2].startswith("*") or texts[4].startswith("*"))
        lengths = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
        if either or any(min(sets[2]) <= lengths.get(month, 31) for month in sets[3]):
            return " ".join(texts), sets, either


def brute_force(sets: list[set[int]], either: bool, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    minutes, hours, days, months, weekdays = sets
    found = set()
    wall = start.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0) - timedelta(hours=50)
    last = end.astimezone(zone).replace(tzinfo=None) + timedelta(hours=50)
    while wall < last:
        day, weekday = wall.day in days, (wall.weekday() + 1) % 7 in weekdays
        fits = (day or weekday) if either else (day and weekday)
        if fits and wall.minute in minutes and wall.hour in hours and wall.month in months:
            early = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
            late = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
            found.add(early)  # in a gap: the offset before it, which moves the time forward by the jump
            if late > early and len(hours) == 24:
                found.add(late)
        wall += MINUTE
    return sorted(tick for tick in found if start < tick <= end)


def random_start(rng: random.Random, zone: ZoneInfo) -> tuple[datetime, int]:
    """Somewhere in 2000 to 2035, and an hour of the zone's clock.

    Three times in four the zone's offset changes within a day, and it is the hour of the change.
    """
    start = datetime(rng.randint(2000, 2035), 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(365 * 86_400))
    if rng.random() < 0.25:
        return start, rng.randrange(24)
    for _ in range(366):
        tomorrow = start + timedelta(days=1)
        if start.astimezone(zone).utcoffset() != tomorrow.astimezone(zone).utcoffset():
            return start + timedelta(seconds=rng.randrange(86_400)), hour_of_change(zone, start, tomorrow)
        start = tomorrow
    return start, rng.randrange(24)


def hour_of_change(zone: ZoneInfo, before: datetime, after: datetime) -> int:
    """The hour that the clock leaves out, or shows again."""
    at = before
    while (at + MINUTE).astimezone(zone).utcoffset() == before.astimezone(zone).utcoffset():
        at += MINUTE
    old, new = at.astimezone(zone), (at + MINUTE).astimezone(zone)
    forward = (new.utcoffset() or MINUTE) > (old.utcoffset() or MINUTE)
    return (old + MINUTE).hour if forward else new.hour


def compare(
    rng: random.Random, rounds: int, length: timedelta = timedelta(hours=30), days_open: float = 0.8, most: int = 120
) -> int:
    compared = 0
    for number in range(rounds):
        name = ZONES[number % len(ZONES)]
        zone = ZoneInfo(name)
        start, hour = random_start(rng, zone)
        expression, sets, either = random_expression(rng, hour, days_open)
        end = start + length
        cron, tick = Cron(expression, name), start
        found: list[datetime] = []
        while (tick := cron.next(tick)) <= end and len(found) < most:
            found.append(tick)
        expected = brute_force(sets, either, zone, start, end)[:most]
        assert found == expected, f"Cron({expression!r}, {name!r}) from {start.isoformat()}"
        compared += len(found)
    return compared


def a_seed() -> int:
    seed = int(os.environ.get("JFAST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"JFAST_TEST_SEED={seed}")  # shown when the test fails
    return seed


def test_random_expressions_tick_as_a_walk_through_every_minute_finds():
    assert compare(random.Random(a_seed()), 180) > 500


@pytest.mark.long
def test_many_random_expressions_tick_as_a_walk_through_every_minute_finds():
    assert compare(random.Random(a_seed()), 6000) > 10_000


@pytest.mark.long
def test_a_year_of_random_days_and_months_is_as_a_walk_through_every_minute_finds():
    year = timedelta(days=400)
    assert compare(random.Random(a_seed()), 60, year, days_open=0.0, most=100_000) > 10_000
