"""``jfast-sync worker`` as a process: how it is started, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import urllib.request
from pathlib import Path
from subprocess import Popen

import pytest

from tests.integration.cli import TASKS, Project
from tests.servers import PostgresServer
from tests.waiting import eventually

BLOCKING = """
import time
from pathlib import Path
from jfast_sync.tasks import task

@task("shop.block")
def block(payload):
    Path(payload["mark"]).touch()
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.tasks(TASKS)
    return made


def lines(project: Project, count: int) -> None:
    project.ok("enqueue", "shop.hello", "--lines", "-", text='{"n": 1}\n' * count)


def depths(project: Project) -> dict[str, int]:
    found: dict[str, int] = project.ok("stats", "--json").json["depths"]
    return found


def test_drain_runs_everything_and_logs_a_line_per_job(project: Project) -> None:
    lines(project, 3)
    done = project.ok("worker", "--drain", "--threads", "2")
    assert done.out == ""
    assert sum("shop.hello" in line for line in done.err.splitlines()) == 3
    assert depths(project)["ready"] == 0


def test_json_logs_are_one_object_per_line(project: Project) -> None:
    project.config("[plugin.observability]\njson_logs = true\n")
    lines(project, 1)
    done = project.ok("worker", "--drain")
    records = [json.loads(line) for line in done.err.splitlines()]
    assert any(record.get("task") == "shop.hello" for record in records)


def test_max_jobs_ends_it(project: Project) -> None:
    lines(project, 5)
    project.ok("worker", "--max-jobs", "2", "--threads", "1")
    assert depths(project)["ready"] == 3


def test_named_queues_only(project: Project) -> None:
    project.ok("enqueue", "shop.hello", "--queue", "mail")
    project.ok("enqueue", "shop.hello", "--queue", "other")
    project.ok("worker", "--drain", "--queues", "mail, reports")
    assert [row["queue"] for row in project.ok("jobs", "list", "--json").json] == ["other"]


def test_a_progress_bar_on_a_terminal(project: Project) -> None:
    lines(project, 4)
    ours, theirs = pty.openpty()
    worker = project.start("worker", "--drain")
    worker.communicate(timeout=60)
    lines(project, 4)
    with Popen(worker.args, cwd=project.folder, stderr=theirs, env={**os.environ, "TERM": "dumb"}) as watched:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end was closed: Linux says so by an error
            pass
        assert watched.wait(timeout=60) == 0
    os.close(ours)
    text = shown.decode()
    assert "Draining" in text
    assert "4 done, 0 failed attempts, 0 dead letters." in text
    assert "shop.hello" not in text


def test_a_blocked_handler_does_not_keep_the_process(project: Project) -> None:
    project.tasks(BLOCKING, module="stuck")
    mark = project.folder / "started"
    job_id = project.ok("enqueue", "shop.block", json.dumps({"mark": str(mark)})).out.strip()
    worker = project.start("worker", "--grace", "200ms")
    try:
        eventually(mark.exists, timeout=30, what="the handler's start")
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0
    row = project.ok("jobs", "show", job_id, "--json").json
    assert (row["state"], row["attempts"]) == ("ready", 0)


def test_readiness_beside_a_worker(project: Project) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = project.start("worker", "--probe-port", str(port))

    def ready() -> dict[str, object]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                found: dict[str, object] = json.load(answer)
                return found
        except OSError:
            return {}

    try:
        answer = eventually(ready, timeout=30, until=lambda it: it.get("status") == "ok", what="a healthy worker")
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.communicate()
    assert set(answer["checks"]) == {"database", "outbox", "queue", "worker"}  # type: ignore[call-overload]
    assert worker.returncode == 0
    assert "Traceback" not in err


def test_several_processes_drain_together_and_end(project: Project) -> None:
    lines(project, 200)
    done = project.ok("worker", "--processes", "2", "--threads", "2", "--drain")
    assert "worker process 2 runs as" in done.err
    assert depths(project)["ready"] == 0
    assert project.ok("stats", "--json").json["done"] == {"shop.hello": 200}


def test_several_processes_stop_at_one_signal(project: Project) -> None:
    worker = project.start("worker", "--processes", "2", "--threads", "1", start_new_session=True)
    assert worker.stderr is not None
    try:
        started = 0
        while started < 2:
            line = worker.stderr.readline()
            assert line, "it ended before both processes had started"
            started += "starts: 1 threads" in line
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0


def test_wrong_tables_end_all_processes(project: Project) -> None:
    done = project.run("worker", "--processes", "2", "--drain", environ={"JFAST_ENV": "prod"})
    assert done.code == 4
    assert "jfast-sync db upgrade" in done.err


def test_a_server_that_is_away_is_waited_for(project: Project, killable_postgres: PostgresServer) -> None:
    name = killable_postgres.create_database()
    project.environ["JFAST_DB_DSN"] = killable_postgres.dsn(name)
    killable_postgres.stop()
    worker = project.start("worker", "--max-jobs", "1")
    assert worker.stderr is not None
    try:
        while "goes on trying" not in (line := worker.stderr.readline()):
            assert line, "it ended instead of waiting"
        killable_postgres.start()
        project.ok("enqueue", "shop.hello")
        worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0
    killable_postgres.drop_database(name)


def test_one_port_cannot_serve_two_processes(project: Project) -> None:
    refused = project.run("worker", "--processes", "2", "--probe-port", "8099")
    assert refused.code == 6
    assert "one process" in refused.err
