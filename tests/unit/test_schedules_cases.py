"""The exact cases: expressions, intervals and missed ticks, with what comes out."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from jfast_sync.errors import ScheduleError
from jfast_sync.schedules import Cron, Every
from jfast_sync.schedules.ticks import due, missed

CASES = json.loads((Path(__file__).parents[1] / "cases" / "cron.json").read_text())
CRON = {case["id"]: case for case in CASES["cases"]}
REFUSED = [case["id"] for case in CRON.values() if case["expect"] == "refuse"]
TICKING = [case["id"] for case in CRON.values() if case["expect"] != "refuse"]


def instants(texts):
    return [datetime.fromisoformat(text) for text in texts]


@pytest.mark.parametrize("case_id", TICKING)
def test_an_expression_ticks_at_exactly_these_instants(case_id):
    case = CRON[case_id]
    expected = instants(case["expect"])
    ticks = Cron(case["expr"], case["zone"]).next_many(datetime.fromisoformat(case["start"]))
    found = list(islice(ticks, len(expected)))
    assert found == expected
    assert {tick.utcoffset() for tick in found} == {timedelta(0)}


@pytest.mark.parametrize("case_id", REFUSED)
def test_an_expression_is_refused_with_what_is_wrong(case_id):
    case = CRON[case_id]
    with pytest.raises(ScheduleError, match="cron expression"):
        Cron(case["expr"], case["zone"])


@pytest.mark.parametrize("case", CASES["intervals"], ids=lambda case: case["id"])
def test_an_interval_counts_from_the_epoch(case):
    expected = instants(case["expect"])
    ticks = Every(timedelta(seconds=case["every_seconds"])).next_many(datetime.fromisoformat(case["start"]))
    assert list(islice(ticks, len(expected))) == expected


@pytest.mark.parametrize("case", CASES["catch_up"], ids=lambda case: case["id"])
def test_of_missed_ticks_the_latest_fires(case):
    cron = Cron(case["expr"], case["zone"])
    since, now = instants([case["last_claimed"], case["now"]])
    found = due(cron, since=since, now=now)
    assert [found.fires] == (instants(case["fires"]) or [None])
    assert found.next == datetime.fromisoformat(case["next"])
    assert missed(cron, since=since, before=found.fires or now, at_most=5000) == case["skipped"]


def test_every_case_is_run_under_a_name_of_its_own():
    assert len(CRON) == len(CASES["cases"]) == len(TICKING) + len(REFUSED)
