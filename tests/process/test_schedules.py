"""Several scheduling processes on one store, one with a wrong clock, one killed, one stopped: each tick once."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.process.fleet import SECOND, Fleet, assert_each_tick_once, between_ticks, fleet
from tests.waiting import eventually

__all__ = ["fleet"]

SHIFTED = Path(__file__).parent / "shifted_clock"


def rounds(fleet: Fleet, processes: int, ticks: int, longest_gap: timedelta) -> None:
    path = os.pathsep.join(filter(None, [str(SHIFTED), os.environ.get("PYTHONPATH")]))
    fleet_of = [fleet.start() for _ in range(processes - 1)]
    # Where one machine's clock is the store's, a process with another clock is another machine: not on SQLite.
    shifted: dict[str, Any] = {} if fleet.app.queue.backend.backend == "sqlite" else {"CLOCK_SHIFT": "3"}
    fleet_of.append(fleet.start(PYTHONPATH=path, **shifted) if shifted else fleet.start())
    for process in fleet_of:
        process.wait_for_log("scheduling", 30)
    fleet.wait_for_ticks(ticks)
    between_ticks()
    fleet_of[0].kill()
    fleet.wait_for_ticks(ticks)
    between_ticks()
    fleet_of[1].pause()
    fleet.wait_for_ticks(ticks)
    fleet_of[1].resume()
    found = fleet.wait_for_ticks(ticks)
    assert_each_tick_once(found, longest_gap)
    assert found[-1] <= datetime.now(UTC) + SECOND
    for process in fleet_of[1:]:
        assert process.running
        # psycopg's C code is surprised by the other datetime of the process with the wrong clock.
        assert [line for line in process.trouble() if "datetime.datetime size changed" not in line] == []


def test_four_processes_tick_once_though_one_is_killed_and_one_stopped(fleet: Fleet) -> None:
    # A machine that stands still for longer than a second skips a tick, as it has to.
    rounds(fleet, 4, 2, longest_gap=4 * SECOND)


@pytest.mark.long
def test_eight_processes_for_twenty_seconds_miss_no_tick(fleet: Fleet) -> None:
    rounds(fleet, 8, 6, longest_gap=SECOND)


def test_after_a_time_without_anybody_one_tick_is_made_up_for(fleet: Fleet) -> None:
    first = fleet.start()
    first.wait_for_log("scheduling", 30)
    fleet.wait_for_ticks(1)
    between_ticks()
    first.kill()
    before = fleet.ticks()
    eventually(lambda: datetime.now(UTC) > before[-1] + 4 * SECOND, what="some seconds without a scheduler")
    assert fleet.ticks() == before
    fleet.start().wait_for_log("scheduling", 30)
    after = fleet.wait_for_ticks(2)
    made_up = after[len(before)]
    assert made_up >= before[-1] + 3 * SECOND  # the latest of those that were missed, and none before it
