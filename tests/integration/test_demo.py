"""The README's first command: real jobs, counted from the database, and nothing left behind."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.integration.cli import Project
from tests.servers import RedisServer
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import eventually

LIMIT = 30.0  # seconds, start included


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder, with temporary files where the test can see them."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    return Project(tmp_path / "here", {"TMPDIR": str(tmp_path / "temporary")})


def left_behind(project: Project) -> list[str]:
    return [str(path) for path in project.folder.parent.rglob("*") if path.name not in ("here", "temporary")]


def schemas(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'jfast%'").fetchall()
    return [row[0] for row in rows]


def tables(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return [row[0] for row in rows]


def check(figures: dict[str, object], jobs: int, backend: str) -> None:
    assert list(figures) == ["backend", "jobs", "done", "retried", "dead", "replayed", "skipped", "seconds"]
    dead, webhooks, pairs = jobs // 200 or 1, jobs // 20, jobs // 20
    assert figures | {"seconds": 0} == {
        "backend": backend,
        "jobs": jobs,
        "done": jobs - pairs,
        "retried": webhooks + dead,
        "dead": dead,
        "replayed": dead,
        "skipped": pairs,
        "seconds": 0,
    }


def test_a_thousand_jobs_on_sqlite(project: Project) -> None:
    done = project.ok("demo", "--json", timeout=LIMIT)
    assert done.err == ""
    check(done.json, 1000, "sqlite")
    assert left_behind(project) == []


def test_three_hundred_jobs_on_rabbitmq_leave_no_queue(
    project: Project, rabbitmq_url: str, rabbitmq_server: RabbitServer
) -> None:
    done = project.ok("demo", "--json", "--jobs", "300", "--backend", rabbitmq_url, timeout=LIMIT)
    assert done.err == ""
    check(done.json, 300, "rabbitmq")
    assert "jfast.demo" not in rabbitmq_server.control("list_queues", "name")
    assert left_behind(project) == []


def test_a_thousand_jobs_on_redis_leave_no_key(project: Project, redis_url: str, redis_server: RedisServer) -> None:
    done = project.ok("demo", "--json", "--backend", redis_url, timeout=LIMIT)
    assert done.err == ""
    check(done.json, 1000, "redis")
    assert redis_server.command("KEYS", "*") == []
    assert left_behind(project) == []


def test_a_thousand_jobs_on_postgresql_in_a_schema_of_its_own(project: Project, postgres_dsn: str) -> None:
    done = project.ok("demo", "--json", "--backend", postgres_dsn, timeout=LIMIT)
    assert done.err == ""
    check(done.json, 1000, "postgresql")
    assert schemas(postgres_dsn) == []
    assert tables(postgres_dsn) == []
    assert left_behind(project) == []


def test_for_people_it_shows_the_dead_letter_and_sums_up(project: Project) -> None:
    done = project.ok("demo", "--jobs", "40", "--threads", "2")
    assert "\x1b" not in done.out
    assert "    LookupError: there is no exchange rate for XDR" in done.out
    assert "1 replayed" in done.out
    assert "38 done + 2 skipped = 40 of 40 jobs" in done.out
    assert done.err == ""


def test_a_project_in_the_same_folder_is_not_touched(project: Project) -> None:
    project.config('[plugin.queue]\nname = "mine"\n')
    project.tasks("raise RuntimeError('the demo must not import me')\n")
    before = {path: path.stat().st_mtime_ns for path in project.folder.rglob("*")}
    project.ok("demo", "--jobs", "10", "--json", environ={"JFAST_QUEUE_NAME": "mine_too", "JFAST_ENV": "prod"})
    assert {path: path.stat().st_mtime_ns for path in project.folder.rglob("*")} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_midway_it_leaves_nothing(project: Project, number: signal.Signals) -> None:
    demo = project.start("demo", "--jobs", "20000", "--json")
    try:
        eventually(lambda: jobs_in(project) > 0, timeout=30, what="jobs in the demo's database")
        demo.send_signal(number)
        out, err = demo.communicate(timeout=30)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, out, err.strip()) == (128 + number, "", "")
    assert left_behind(project) == []


def test_stopped_midway_it_leaves_nothing_on_postgresql(project: Project, postgres_dsn: str) -> None:
    demo = project.start("demo", "--jobs", "20000", "--json", "--backend", postgres_dsn)
    try:
        eventually(lambda: bool(schemas(postgres_dsn)), timeout=30, what="the demo's schema")
        demo.send_signal(signal.SIGINT)
        _, err = demo.communicate(timeout=30)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, err.strip()) == (130, "")
    assert schemas(postgres_dsn) == []


def test_a_server_that_is_not_there(project: Project) -> None:
    done = project.run("demo", "--backend", "postgresql://jfast:s3cret@127.0.0.1:1/none", "--json")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("Error: ")
    assert "s3cret" not in done.err
    assert left_behind(project) == []


def jobs_in(project: Project) -> int:
    """Count the jobs in the demo's SQLite file, from outside."""
    for file in (project.folder.parent / "temporary").glob("jfast-demo-*/demo.db"):
        try:
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
                names = connection.execute("SELECT name FROM sqlite_master WHERE name GLOB 'jfast_demo_*[0-9a-f]'")
                return sum(
                    connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                    for (name,) in names.fetchall()
                    if not name.endswith(("counters", "idx"))
                )
        except sqlite3.OperationalError:
            return 0
    return 0


def test_the_figures_are_json_and_nothing_else(project: Project) -> None:
    done = project.ok("demo", "--jobs", "10", "--json")
    assert isinstance(json.loads(done.out), dict)
    assert done.err == ""
