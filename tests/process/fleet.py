"""Processes that schedule on one store, alone or while they serve, and the ticks that come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.schedules.ticks import tick_id
from jfast_sync.tasks.registry import Registry
from tests.process.workers import PROGRAMS, WorkerProcess
from tests.waiting import eventually

#: Uses its database and its tables when it is imported: where a server preloads it, before the fork.
APP = """
import os

from flask import Flask
from sqlalchemy import text

from jfast_sync import Job
from jfast_sync.flask import JFast, get_session

app = Flask(__name__)
jf = JFast(app)
with jf.session() as session:
    session.execute(text("SELECT 1"))


@app.post("/jobs/<id>")
def enqueue(id):
    jf.outbox.enqueue(get_session(), Job(task="ordered", id=id))
    return {"pid": os.getpid()}


@app.get("/connection")
def connection():
    return {"pid": os.getpid(), "server": get_session().execute(text("SELECT pg_backend_pid()")).scalar_one()}
"""

SECOND = timedelta(seconds=1)

TASKS = """
from datetime import timedelta
from jfast_sync.tasks import task

@task("beat", every=timedelta(seconds=1))
def beat(payload):
    pass

@task("pulse", every=timedelta(seconds=1))
def pulse(payload):
    pass
"""

#: Schedules and runs nothing, so that every tick's job stays to be looked at. Where there is a file called "stop-here",
#: the next to win a tick of "beat" writes the tick into "held" and stops, between its claim and its job.
PROGRAM = """
import logging, signal, threading
from pathlib import Path
from jfast_sync.app import load
logging.basicConfig(level="INFO")
signal.signal(signal.SIGTERM, lambda *_: exit(0))

def inside(job):
    if job.task == "beat" and Path("stop-here").exists():
        Path("stop-here").unlink()
        Path("held").write_text(job.payload["scheduled_for"])
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # not in a moment, as one to the process may be
    return prepare(job)

with load(None) as app:
    prepare, app.queue.prepare = app.queue.prepare, inside
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

    def serve(self, program: str, *arguments: str, **environment: str) -> WorkerProcess:
        """Start a server with the app of this module, whose serving processes schedule by themselves."""
        (self.folder / "main.py").write_text(APP)
        server = WorkerProcess(self.folder, program, [str(PROGRAMS / program), *arguments], environment)
        self.stack.callback(server.close)
        return server

    def ticks(self, task: str = "beat") -> list[datetime]:
        """The ticks that have a job, in order; each job is the tick's own."""
        return [tick for tick, _ in self.delays(task)]

    def delays(self, task: str) -> list[tuple[datetime, timedelta]]:
        """The ticks that have a job, in order, and how much later each job was stored."""
        found = []
        for row in self.app.queue.inspect.jobs(task=task, limit=100_000):
            tick = datetime.fromisoformat(row.job.payload["scheduled_for"])
            assert row.job.id == tick_id(task, tick)
            assert row.job.created_at is not None
            found.append((tick, row.job.created_at - tick))
        return sorted(found)

    def wait_for_ticks(self, count: int, task: str = "beat") -> list[datetime]:
        begun = len(self.ticks(task))
        return eventually(
            lambda: self.ticks(task), 60, until=lambda ticks: len(ticks) >= begun + count, what=f"{count} more ticks"
        )


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
