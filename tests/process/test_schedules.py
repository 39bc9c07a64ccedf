"""Several scheduling processes on one store, one with a wrong clock, one killed, one stopped: each tick once."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from jfast_sync import Job
from tests.process.fleet import SECOND, Fleet, assert_each_tick_once, between_ticks, fleet
from tests.process.workers import WorkerProcess
from tests.waiting import eventually

__all__ = ["fleet"]

SHIFTED = Path(__file__).parent / "shifted_clock"


def start(fleet: Fleet, processes: int) -> list[WorkerProcess]:
    """Start processes, the last of which has a clock that is three seconds fast."""
    path = os.pathsep.join(filter(None, [str(SHIFTED), os.environ.get("PYTHONPATH")]))
    started = [fleet.start() for _ in range(processes - 1)]
    started.append(fleet.start(PYTHONPATH=path, CLOCK_SHIFT="3"))
    for process in started:
        process.wait_for_log("scheduling", 30)
    return started


def rounds(fleet: Fleet, processes: int, ticks: int, longest_gap: timedelta) -> None:
    started = start(fleet, processes)
    fleet.wait_for_ticks(ticks)
    between_ticks()
    started[0].kill()
    fleet.wait_for_ticks(ticks)
    between_ticks()
    # The fast one: SQLite has no clock of its own, so there it has won every tick so far, three seconds early.
    started[-1].pause()
    fleet.wait_for_ticks(ticks)
    started[-1].resume()
    found = fleet.wait_for_ticks(ticks)
    print(f"{len(found)} ticks from {found[0]} to {found[-1]}")
    assert_each_tick_once(found, longest_gap)
    fast = 3 * SECOND if fleet.app.queue.backend.backend == "sqlite" else timedelta(0)
    assert found[-1] <= datetime.now(UTC) + SECOND + fast
    assert_no_trouble(started[1:])


def assert_no_trouble(started: list[WorkerProcess]) -> None:
    for process in started:
        assert process.running
        # psycopg's C code is surprised by the other datetime of the process with the wrong clock; and that a tick was
        # left out because somebody stood still is said by whoever claims the next.
        expected = ("datetime.datetime size changed", "before it are skipped")
        assert [line for line in process.trouble() if not any(words in line for words in expected)] == []


def test_four_processes_tick_once_though_one_is_killed_and_one_stopped(fleet: Fleet) -> None:
    # A machine that stands still for longer than a second skips a tick, as it has to.
    rounds(fleet, 4, 2, longest_gap=4 * SECOND)


@pytest.mark.long
def test_eight_processes_for_twenty_seconds_miss_no_tick(fleet: Fleet) -> None:
    rounds(fleet, 8, 6, longest_gap=SECOND)


def stop_one_inside_a_tick(fleet: Fleet, started: list[WorkerProcess]) -> tuple[WorkerProcess, datetime]:
    """Let the next process that wins a tick stop before it enqueues the job; return it and the tick."""
    (fleet.folder / "stop-here").touch()
    stopped: list[WorkerProcess] = eventually(
        lambda: [process for process in started if process.process.status() == psutil.STATUS_STOPPED], 30
    )
    return stopped[0], datetime.fromisoformat((fleet.folder / "held").read_text())


@pytest.mark.parametrize("fleet", ["postgresql", "redis"], indirect=True)
def test_a_process_stopped_inside_a_tick_delays_no_other_and_fires_nothing_behind_a_later_one(fleet: Fleet) -> None:
    started = start(fleet, 3)
    fleet.wait_for_ticks(2)
    stopped, held = stop_one_inside_a_tick(fleet, started)
    fleet.wait_for_ticks(3)
    fleet.wait_for_ticks(3, "pulse")
    assert held not in fleet.ticks()
    delays = [delay for tick, delay in fleet.delays("pulse") if tick >= held]
    print(f"while one is stopped inside a tick: the other schedule is up to {max(delays)} late")
    assert max(delays) < 2 * SECOND
    stopped.resume()
    found = fleet.wait_for_ticks(3)
    assert_each_tick_once(found, longest_gap=4 * SECOND)
    assert held not in found
    assert_no_trouble(started)


def test_a_process_killed_inside_a_tick_holds_up_nobody(fleet: Fleet) -> None:
    started = start(fleet, 3)
    fleet.wait_for_ticks(2)
    stopped, held = stop_one_inside_a_tick(fleet, started)
    before = fleet.ticks()
    assert held not in before
    stopped.kill()
    found = fleet.wait_for_ticks(3)
    assert_each_tick_once(found, longest_gap=5 * SECOND)
    assert_no_trouble([process for process in started if process is not stopped])


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


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_a_draining_worker_leaves_no_tick_out(fleet: Fleet) -> None:
    with (fleet.folder / "modules" / "work" / "tasks.py").open("a") as tasks:
        tasks.write(HOLD)
    worker = fleet.serve("jfast-sync", "worker", "--threads", "1", "--grace", "60")
    worker.wait_for_log("starts: 1 threads", 30)
    fleet.app.queue.enqueue(Job(task="hold"))
    worker.wait_for_log("holding")
    held_since = fleet.app.queue.inspect.jobs(task="hold")[0].job.created_at
    worker.terminate()
    worker.wait_for_log("stopping")
    fleet.wait_for_ticks(3)
    (fleet.folder / "release").touch()
    assert worker.wait(15) == 0
    # What waits in the queue now came while it held its only thread: every tick from then on.
    ticks = fleet.ticks()
    assert held_since is not None and ticks[0] <= held_since + 2 * SECOND
    assert_each_tick_once(ticks, longest_gap=2 * SECOND)


HOLD = """
@task("hold")
def hold(payload):
    import time
    from pathlib import Path
    print("holding", flush=True)
    while not Path("release").exists():
        time.sleep(0.02)
"""
