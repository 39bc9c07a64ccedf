"""`jfast-sync schedules`, and a worker that runs them."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.cli import Project
from tests.waiting import eventually

TASKS = """
    from datetime import timedelta
    from jfast_sync.tasks import task

    @task("shop.report", cron="30 2 * * *", timezone="Europe/Madrid", jitter=timedelta(seconds=5), payload={"days": 1})
    def report(payload):
        pass

    @task("shop.beat", every=timedelta(seconds=1), catch_up=False)
    def beat(payload):
        pass
"""

ELSEWHERE = """
from datetime import timedelta
from jfast_sync import connect
app = connect()
app.tasks.schedule("shop.elsewhere", every=timedelta(days=1), name="elsewhere")
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.config("[app]\nname = 'shop'\n")
    made.tasks(TASKS)
    return made


def test_the_list_says_when_each_is_next(project: Project) -> None:
    before = datetime.now(UTC)
    beat, report = project.ok("schedules", "list", "--json").json
    assert (report["name"], report["task"], report["cron"], report["every"]) == (
        "shop.report",
        "shop.report",
        "30 2 * * *",
        None,
    )
    assert (report["timezone"], report["jitter"], report["payload"]) == ("Europe/Madrid", 5.0, {"days": 1})
    assert (report["last"], report["catch_up"], report["scheduler"], report["known"]) == (None, True, "off", True)
    following = datetime.fromisoformat(report["next"])
    assert before < following < before + timedelta(days=2)
    assert report["next"].endswith("+00:00")
    assert datetime.fromisoformat(report["next_local"]) == following
    assert report["next_local"][11:19] == "02:30:00" or following.astimezone().month in (3, 10)
    assert (beat["every"], beat["cron"], beat["timezone"], beat["catch_up"]) == (1.0, None, "UTC", False)
    assert report["where"].split(":")[-1].isdigit() and "modules/shop/tasks.py" in report["where"]
    shown = project.ok("schedules", "list")
    assert "every 1s" in shown.out and "never" in shown.out
    assert "The scheduler is off here: set [plugin.queue] scheduler = true." in shown.err
    on = project.ok("schedules", "list", environ={"JFAST_QUEUE_SCHEDULER": "true"})
    assert "The scheduler is off" not in on.err


def test_the_list_creates_nothing(project: Project) -> None:
    _, report = project.ok("schedules", "list", "--json").json
    assert report["max_attempts"] is None
    assert " in " in report["zone_data"]
    assert not (project.folder / "jfast.db").exists()
    (project.folder / "jfast.db").touch()
    assert project.ok("schedules", "list", "--json").json[1]["last"] is None
    with closing(sqlite3.connect(project.folder / "jfast.db")) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_a_project_without_schedules(project: Project) -> None:
    project.tasks("")
    assert "No schedule is declared" in project.ok("schedules", "list").out
    assert project.ok("schedules", "list", "--json").json == []
    done = project.run("schedules", "run", "x")
    assert (done.code, done.out) == (1, "")
    assert "there is no schedule 'x' here; this project declares no schedule" in done.err


def test_a_preview_marks_what_the_clock_does(project: Project) -> None:
    spring = project.ok("schedules", "preview", "shop.report", "--from", "2025-03-29T12:00:00Z", "--limit", "2").out
    assert spring.splitlines()[1].startswith("Sun 2025-03-30 03:30:00 +0200  2025-03-30 01:30:00Z  moved forward")
    assert spring.splitlines()[2].split() == ["Mon", "2025-03-31", "02:30:00", "+0200", "2025-03-31", "00:30:00Z"]
    night = ("--from", "2025-10-25T12:00:00Z", "--to", "2025-10-27T12:00:00Z")
    autumn = project.ok("schedules", "preview", "shop.report", *night, "--json").json
    assert [(tick["utc"], tick["local"], tick["effect"]) for tick in autumn] == [
        ("2025-10-26T00:30:00+00:00", "2025-10-26T02:30:00+02:00", "only first of two"),
        ("2025-10-27T01:30:00+00:00", "2025-10-27T02:30:00+01:00", None),
    ]
    assert {len(tick["job"]) for tick in autumn} == {32}
    assert len(project.ok("schedules", "preview", "shop.beat").out.splitlines()) == 11
    cut = project.ok(
        "schedules", "preview", "shop.beat", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T01:00:00Z"
    )
    assert len(cut.out.splitlines()) == 1001
    assert "--limit shows more than 1000" in cut.err
    nothing = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T00:00:00Z")
    assert project.ok("schedules", "preview", "shop.beat", *nothing).out == "No tick in that time.\n"
    assert not (project.folder / "jfast.db").exists()


def test_times_of_a_preview_are_on_the_schedules_own_clock(project: Project) -> None:
    def utc(*arguments: str) -> list[str]:
        return [tick["utc"][:16] for tick in project.ok("schedules", "preview", *arguments, "--json").json]

    assert utc("shop.report", "--from", "2025-03-29", "--to", "2025-03-31") == ["2025-03-29T01:30", "2025-03-30T01:30"]
    assert utc("shop.report", "--from", "2025-07-01T02:30", "--limit", "1") == ["2025-07-02T00:30"]
    assert utc("shop.report", "--from", "2025-07-01T02:30Z", "--limit", "1") == ["2025-07-02T00:30"]
    assert utc("shop.report", "--from", "2025-07-01T00:29Z", "--limit", "1") == ["2025-07-01T00:30"]
    for times, said in {
        ("--from", "tomorrow"): "'tomorrow' is not a time; write it as 2026-03-01T08:00, or with Z for UTC",
        ("--from", "2025-03-31", "--to", "2025-03-29"): "--to (2025-03-28T23:00:00+00:00) lies before --from",
        ("--from", "9999-12-31T23:59-10:00"): "outside the calendar",
    }.items():
        refused = project.run("schedules", "preview", "shop.report", *times)
        assert (refused.code, refused.out) == (6, "")
        assert said in refused.err
    assert utc("shop.beat", "--from", "9999-12-31T23:59:57") == ["9999-12-31T23:59"] * 2


def test_a_run_by_hand_is_a_job_with_a_fresh_id(project: Project) -> None:
    first = project.ok("schedules", "run", "shop.report").out.strip()
    second = project.ok("schedules", "run", "shop.report", "--json").json
    assert second["id"] != first
    assert (second["task"], second["schedule"]) == ("shop.report", "shop.report")
    shown = project.ok("jobs", "show", first, "--json").json
    assert shown["payload"]["days"] == 1
    scheduled_for = datetime.fromisoformat(shown["payload"]["scheduled_for"])
    assert scheduled_for <= datetime.now(UTC)
    assert scheduled_for.microsecond  # no tick's instant, and another one than that of a second run
    assert project.ok("schedules", "list", "--json").json[1]["last"] is None
    project.ok("worker", "--drain")


def test_a_run_of_a_task_that_is_unknown_here_says_so(project: Project) -> None:
    (project.folder / "main.py").write_text(ELSEWHERE)
    done = project.ok("schedules", "run", "elsewhere", "--app", "main:app")
    assert len(done.out.strip()) == 32
    assert "Task shop.elsewhere is unknown here" in done.err


@pytest.mark.parametrize("command", [["preview"], ["run"]])
def test_an_unknown_schedule_names_the_nearest(project: Project, command: list[str]) -> None:
    done = project.run("schedules", *command, "shop.reprot")
    assert (done.code, done.out) == (1, "")
    assert "there is no schedule 'shop.reprot' here; did you mean 'shop.report'?" in done.err


def test_a_wrong_expression_stops_every_command_with_its_place(project: Project) -> None:
    project.tasks(TASKS.replace("30 2 * * *", "5/15 * * * *"))
    for command in (["schedules", "list"], ["worker"], ["stats"]):
        done = project.run(*command)
        assert done.code == 2
        assert "modules/shop/tasks.py" in done.err
        assert "schedule 'shop.report': cron expression '5/15 * * * *': minute '5/15': a step needs a range" in done.err


def test_a_worker_runs_what_is_due(project: Project) -> None:
    worker = project.start("worker", "--threads", "1", environ={"JFAST_QUEUE_SCHEDULER": "true"})
    try:
        last = eventually(lambda: project.ok("schedules", "list", "--json").json[0]["last"], timeout=30)
        assert abs(datetime.now(UTC) - datetime.fromisoformat(last)) < timedelta(seconds=30)
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            _, err = worker.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            worker.kill()
            raise
    assert worker.returncode == 0, err
    assert "2 schedules, ticks in database" in err


def test_a_worker_says_that_its_scheduler_is_off(project: Project) -> None:
    worker = project.start("worker", "--threads", "1")
    assert worker.stderr is not None
    line = next(line for line in worker.stderr if "schedules are declared" in line)
    assert "2 schedules are declared and do not run here" in line
    assert next(line for line in worker.stderr if "1 threads on sqlite" in line)  # it handles signals from here on
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
