"""Several scheduling processes on one store, one with a wrong clock, one killed, one stopped: each tick once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.tasks.registry import Registry
from tests.process.workers import PROGRAMS, WorkerProcess
from tests.servers.network import HOST, free_port
from tests.waiting import eventually

GUNICORN = """
bind = "{bind}"
workers = 4
preload_app = {preload}
control_socket_disable = True
"""

APP = """
from flask import Flask
from jfast_sync.flask import JFast

app = Flask(__name__)
jf = JFast(app)
with jf.session():
    pass
"""

SHIFTED = Path(__file__).parent / "shifted_clock"
SECOND = timedelta(seconds=1)

TASKS = """
from datetime import timedelta
from jfast_sync.tasks import task

@task("beat", every=timedelta(seconds=1))
def beat(payload):
    pass
"""

#: Schedules and runs nothing, so that every tick's job stays to be looked at.
PROGRAM = """
import logging, signal
from jfast_sync.app import load
logging.basicConfig(level="INFO")
signal.signal(signal.SIGTERM, lambda *_: exit(0))
with load(None) as app:
    app.start_scheduler()
    print("scheduling", flush=True)
    while True:
        signal.pause()
"""


@dataclass
class Fleet:
    """Processes that schedule, and the queue they all fill."""

    folder: Path
    app: JFast
    stack: ExitStack
    started: int = 0

    def start(self, **environment: str) -> WorkerProcess:
        self.started += 1
        command = [str(PROGRAMS / "python"), "program.py"]
        process = WorkerProcess(self.folder, f"scheduler-{self.started}", command, environment)
        self.stack.callback(process.close)
        return process

    def serve(self, *, preload: bool) -> WorkerProcess:
        """Start gunicorn with four serving processes, which schedule by themselves."""
        (self.folder / "main.py").write_text(APP)
        (self.folder / "gunicorn.conf.py").write_text(GUNICORN.format(bind=f"{HOST}:{free_port()}", preload=preload))
        master = WorkerProcess(self.folder, "gunicorn", [str(PROGRAMS / "gunicorn"), "main:app"], {})
        self.stack.callback(master.close)
        return master

    def ticks(self) -> list[datetime]:
        """The ticks that have a job, in order; each job is the tick's own."""
        found = []
        for row in self.app.queue.inspect.jobs(task="beat", limit=100_000):
            tick = datetime.fromisoformat(row.job.payload["scheduled_for"])
            assert row.job.id == tick_id("beat", tick)
            found.append(tick)
        return sorted(found)

    def wait_for_ticks(self, count: int) -> list[datetime]:
        begun = len(self.ticks())
        return eventually(self.ticks, 60, until=lambda ticks: len(ticks) >= begun + count, what=f"{count} more ticks")


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    fixture = {"sqlite": "sqlite_dsn", "postgresql": "postgres_dsn", "redis": "redis_url"}[request.param]
    url = request.getfixturevalue(fixture)
    folder = tmp_path / "project"
    (folder / "modules" / "work").mkdir(parents=True)
    (folder / "modules" / "work" / "tasks.py").write_text(TASKS)
    (folder / "program.py").write_text(PROGRAM)
    if request.param == "redis":
        config = f'[plugins]\nenabled = ["queue", "cache"]\n[plugin.cache]\nurl = "{url}"\n[plugin.queue]\n'
        config += 'backend = "redis"\nscheduler = true\n'
    else:
        config = f'[plugin.database]\ndsn = "{url}"\n[plugin.queue]\nscheduler = true\n'
    (folder / "jfast.toml").write_text(config)
    app = JFast(load_config(folder), tasks=Registry())
    app.setup()
    with app, ExitStack() as stack:
        yield Fleet(folder, app, stack)


def between_ticks() -> None:
    """Wait for the middle of a second, when nobody is claiming: a stopped claim holds its tick, as it has to."""
    eventually(lambda: 0.35 < time.time() % 1 < 0.6, what="the middle of a second")


def assert_each_tick_once(ticks: list[datetime], longest_gap: timedelta) -> None:
    assert len(set(ticks)) == len(ticks)
    assert {tick.microsecond for tick in ticks} == {0}
    gaps = [later - earlier for earlier, later in pairwise(ticks)]
    assert max(gaps) <= longest_gap, ticks


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


@pytest.mark.parametrize("fleet", ["postgresql"], indirect=True)
@pytest.mark.parametrize("preload", [True, False], ids=["preloaded", "not preloaded"])
def test_a_server_ticks_once_in_all_its_processes_and_goes_on_when_one_is_killed(fleet: Fleet, preload: bool) -> None:
    master = fleet.serve(preload=preload)
    children = eventually(master.children, 30, until=lambda found: len(found) == 4)
    fleet.wait_for_ticks(3)
    between_ticks()
    children[0].kill()
    ticks = fleet.wait_for_ticks(4)
    assert_each_tick_once(ticks, longest_gap=4 * SECOND)
    assert "Traceback" not in master.log
    master.terminate()
    assert master.wait(15) == 0
