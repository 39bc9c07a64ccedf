"""A job whose workers vanished has its last start in a process of its own, and only that one's death condemns it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from jfast_sync.app import JFast, load
from jfast_sync.job import Job
from jfast_sync.ports import DeadFilter, DeadLetters, Selection
from jfast_sync.tasks.declarations import isolated
from jfast_sync.worker import wire
from tests.waiting import eventually

_TASKS = """
import os, signal, sys, time
from pathlib import Path
from sqlalchemy import text
from jfast_sync.tasks import TaskSession, task

def note(payload):
    Path(payload["file"]).write_text(str(os.getpid()))

@task("alone.exit")
def exit_(payload: dict) -> None:
    os._exit(3)

@task("alone.kill")
def kill(payload: dict) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@task("alone.good")
def good(payload: dict, session: TaskSession) -> None:
    print("a handler may print", flush=True)
    session.execute(text("INSERT INTO effects VALUES (:pid)"), {"pid": os.getpid()})

@task("alone.bad")
def bad(payload: dict) -> None:
    raise ValueError("its own fault")

@task("alone.slow", timeout=0.5)
def slow(payload: dict) -> None:
    note(payload)
    time.sleep(600)

@task("alone.long")
def long(payload: dict) -> None:
    note(payload)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    module = tmp_path / "modules" / "alone"
    module.mkdir(parents=True)
    (module / "tasks.py").write_text(_TASKS)
    (tmp_path / "jfast.toml").write_text(f'[plugin.database]\ndsn = "sqlite:///{tmp_path}/jfast.db"\n')
    return tmp_path


@pytest.fixture
def app(folder: Path) -> Iterator[JFast]:
    with isolated(), load(config_path=folder) as app:
        app.setup()
        with app.session() as session:
            session.execute(text("CREATE TABLE effects (pid integer)"))
        yield app


def suspect(app: JFast, task: str, **payload: str) -> str:
    """Enqueue a job as one that has lapsed before and has one start left."""
    job = Job(task=task, payload=payload, max_attempts=3)
    app.queue.enqueue(job)
    with app.session() as session:
        session.execute(text("UPDATE jfast_jobs SET attempts = 2, lapses = 2 WHERE id = :id"), {"id": job.id})
    return job.id


def deaths(app: JFast) -> dict[str, str | None]:
    backend = app.queue.backend
    assert isinstance(backend, DeadLetters)
    return {dead.job.task: dead.job.error for dead in backend.dead(DeadFilter(), limit=10)}


def test_only_its_own_death_condemns_a_job(app: JFast) -> None:
    for task in ("alone.exit", "alone.kill", "alone.good", "alone.bad"):
        suspect(app, task)
    worker = app.worker(drain=True, threads=4)
    assert worker.run() == 0
    assert deaths(app) == {
        "alone.exit": "worker died: exit status 3",
        "alone.kill": "worker died: killed by SIGKILL",
        "alone.bad": "ValueError: its own fault",
    }
    with app.session() as session:
        (pid,) = session.execute(text("SELECT pid FROM effects")).scalars()
    assert pid != os.getpid()
    assert (worker.counts.done, worker.counts.dead) == (1, 3)


@pytest.mark.parametrize(("lapses", "dead"), [(12, False), (13, True)])
def test_a_job_whose_workers_vanish_without_end_is_a_dead_letter(app: JFast, lapses: int, dead: bool) -> None:
    """One that takes the whole container with it leaves nobody to tell that its child died."""
    job_id = suspect(app, "alone.good")
    with app.session() as session:
        session.execute(text("UPDATE jfast_jobs SET lapses = :n WHERE id = :id"), {"n": lapses, "id": job_id})
    assert app.worker(drain=True, threads=1).run() == 0
    with app.session() as session:
        effects = session.execute(text("SELECT count(*) FROM effects")).scalar()
    assert effects == (0 if dead else 1)
    assert [(task, str(error)[:26]) for task, error in deaths(app).items()] == (
        [("alone.good", "worker vanished: 13 starts")] if dead else []
    )


def test_a_timeout_ends_the_child_and_is_counted_from_the_jobs_start(app: JFast, tmp_path: Path) -> None:
    suspect(app, "alone.slow", file=str(tmp_path / "pid"))
    assert app.worker(drain=True, threads=1).run() == 0
    assert deaths(app) == {"alone.slow": "TimeoutError: ran longer than 0.5 s"}
    assert (tmp_path / "pid").exists(), "building the app must not spend the job's time"


def test_a_drain_ends_the_child_and_gives_the_attempt_back(app: JFast, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    job_id = suspect(app, "alone.long", file=str(file))
    worker = app.worker(threads=1, grace=0.0)
    worker.start()
    eventually(file.exists, timeout=30)
    worker.stop()
    assert worker.join(10)
    with app.session() as session:
        row = session.execute(text("SELECT status, attempts FROM jfast_jobs WHERE id = :id"), {"id": job_id}).one()
    assert tuple(row) == ("pending", 2)
    assert worker.abandoned_threads == 0


def test_an_app_that_cannot_be_built_there_condemns_nobody(
    app: JFast, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = suspect(app, "alone.good")
    (folder / "modules" / "alone" / "tasks.py").write_text("import nowhere_to_be_found")
    with_worker = app.worker(threads=1)
    with_worker.start()
    try:
        eventually(lambda: with_worker.counts.retried, timeout=30, until=lambda retried: retried == 1)
    finally:
        with_worker.stop()
        assert with_worker.join(10)
    assert "nowhere_to_be_found" in caplog.text
    with app.session() as session:
        row = session.execute(
            text("SELECT status, attempts, lapses FROM jfast_jobs WHERE id = :id"), {"id": job_id}
        ).one()
    assert tuple(row) == ("pending", 2, 2)


@pytest.mark.parametrize("code", ["import nowhere_to_be_found", "import os; os._exit(3)"])
def test_what_never_starts_there_is_a_dead_letter_in_the_end(app: JFast, folder: Path, code: str) -> None:
    """Not "worker died", for the job did not run; and not tried for ever."""
    job_id = suspect(app, "alone.good")
    (folder / "modules" / "alone" / "tasks.py").write_text(code)
    week = 8 * 86_400 * 1_000_000
    with app.session() as session:
        session.execute(text("UPDATE jfast_jobs SET snoozed_since = available_at - :week"), {"week": week})

    app.worker(drain=True, threads=1).run()

    (error,) = deaths(app).values()
    assert error is not None
    assert error.startswith("not started in a process of its own for 8 days")
    with app.session() as session:
        assert not session.execute(text("SELECT pid FROM effects")).all()
        assert session.execute(text("SELECT status FROM jfast_jobs WHERE id = :id"), {"id": job_id}).scalar() == "dead"


def test_a_child_that_ends_before_the_job_starts_condemns_nobody(app: JFast, folder: Path) -> None:
    """A deploy in the middle of which nothing can be imported is not the job's fault."""
    tasks = folder / "modules" / "alone" / "tasks.py"
    good = tasks.read_text()
    suspect(app, "alone.good")
    tasks.write_text("import os; os._exit(1)")
    worker = app.worker(threads=1)
    worker.start()
    try:
        eventually(lambda: worker.counts.retried, timeout=30, until=bool)
        tasks.write_text(good)
        eventually(lambda: worker.counts.done, timeout=30, until=bool)
    finally:
        worker.stop()
        assert worker.join(10)
    assert not deaths(app)


def test_a_child_does_not_outlive_its_worker(app: JFast, tmp_path: Path) -> None:
    """The child's standard input is its lifeline: the worker's end is closed when the worker is gone."""
    file = tmp_path / "pid"
    suspect(app, "alone.long", file=str(file))
    (lease,) = app.queue.backend.claim(1, 0.0, Selection(worker="w"))
    assert app.source is not None
    order = {
        "source": app.source.to_json(),
        "lease": wire.lease_to(lease),
        "path": sys.path,
        "module": "modules.alone.tasks",
        "main": None,
    }
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "jfast_sync.alone", str(writing)], stdin=subprocess.PIPE, pass_fds=(writing,)
        ) as child:
            assert child.stdin is not None
            child.stdin.write(json.dumps(order).encode() + b"\n")
            child.stdin.flush()
            eventually(file.exists, timeout=30)
            child.stdin.close()
            assert child.wait(10) == 1
    finally:
        os.close(reading)
        os.close(writing)
