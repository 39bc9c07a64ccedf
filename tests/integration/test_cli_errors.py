"""Bad input gets one clear message and its exit code: no traceback, no password, nothing half done."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.cli import TASKS, Done, Project

COMMANDS = (["stats", "--json"], ["worker", "--drain"], ["enqueue", "shop.hello"])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def refused(done: Done, code: int, *said: str) -> None:
    assert done.code == code, (done.out, done.err)
    assert done.out == ""
    assert done.err.startswith("Error: "), done.err
    for text in said:
        assert text in done.err


def test_without_a_file_everything_has_a_default(project: Project) -> None:
    project.tasks(TASKS)
    project.ok("enqueue", "shop.hello", "{}")
    assert (project.folder / "jfast.db").exists()
    assert project.ok("config", "show", "--json").json["file"] is None


@pytest.mark.parametrize("command", [["config", "show"], *COMMANDS])
def test_broken_toml(project: Project, command: list[str]) -> None:
    project.config('[app\nname = "x"\n')
    refused(project.run(*command), 2, "jfast.toml", "line 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[plugin.queue]\nmax_atempts = 3\n", ("max_atempts", "max_attempts")),
        ("[plugin.queu]\nname = 'x'\n", ("plugin.queu", "plugin.queue")),
        ("[app]\nport = 'http'\n", ("port", "http")),
        ("[plugin.queue]\nvisibility_timeout = 0\n", ("visibility_timeout", "0")),
    ],
)
def test_a_wrong_key_or_value_names_file_table_and_key(project: Project, text: str, said: tuple[str, ...]) -> None:
    project.config(text)
    refused(project.run("stats"), 2, "jfast.toml", *said)


def test_a_configuration_that_is_not_there(project: Project) -> None:
    refused(project.run("stats", "--config", "nowhere.toml"), 2, "nowhere.toml")


def test_config_may_stand_before_or_after_the_command(project: Project) -> None:
    other = project.folder / "other"
    other.mkdir()
    (other / "jfast.toml").write_text('[app]\nname = "elsewhere"\n')
    for arguments in (
        ["--config", "other", "config", "show"],
        ["config", "show", "--config", "other"],
        ["config", "--config", "other/jfast.toml", "show"],
    ):
        assert "elsewhere" in project.ok(*arguments).out


def test_warnings_go_to_stderr_and_leave_json_alone(project: Project) -> None:
    project.config('[plugins]\nenabled = ["observability", "database", "queue", "outbox", "auth"]\n')
    done = project.ok("stats", "--json")
    assert done.json["backend"] == "sqlite"
    assert done.err.startswith("Warning: ")
    assert "auth" in done.err


def test_a_tasks_file_that_cannot_be_imported_is_named_with_its_error(project: Project) -> None:
    file = project.tasks("import nosuchmodule\n")
    for command in COMMANDS:
        refused(project.run(*command), 2, str(file), "nosuchmodule", "line 1")


def test_a_syntax_error_is_named_with_its_line(project: Project) -> None:
    file = project.tasks("x = 1\ndef (:\n")
    refused(project.run("tasks"), 2, str(file), "line 2")


def test_an_async_handler_is_refused(project: Project) -> None:
    file = project.tasks("from jfast_sync.tasks import task\n@task('a.b')\nasync def b(payload): ...\n")
    refused(project.run("worker", "--drain"), 2, str(file), "async")


def test_one_name_for_two_tasks_names_both_places(project: Project) -> None:
    text = "from jfast_sync.tasks import task\n@task('a.b')\ndef b(payload): ...\n"
    first, second = project.tasks(text, "one"), project.tasks(text, "two")
    refused(project.run("tasks"), 2, str(first), str(second), "a.b")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nosuchmodule:app", "nosuchmodule"),
        ("main", "MODULE:ATTR"),
        ("main:nothing", "nothing"),
        ("main:number", "neither a Flask app"),
        ("main:broken", "ZeroDivisionError"),
    ],
)
def test_an_app_that_cannot_be_loaded(project: Project, target: str, said: str) -> None:
    (project.folder / "main.py").write_text("number = 7\ndef broken(): return 1 / 0\n")
    refused(project.run("stats", "--app", target), 2, said)


def test_a_module_that_cannot_be_imported(project: Project) -> None:
    refused(project.run("tasks", "--import", "no.such"), 2, "no.such", "--import")
    (project.folder / "main.py").write_text("from jfast_sync import connect\napp = connect()\n")
    refused(project.run("tasks", "--import", "no.such"), 2, "no.such", "--import")


def test_a_module_named_beside_an_app_declares_its_tasks(project: Project) -> None:
    (project.folder / "main.py").write_text("from jfast_sync import connect\napp = connect()\n")
    (project.folder / "more.py").write_text(TASKS)
    assert len(project.ok("tasks", "--import", "more", "--json").json) == 2


def test_with_debug_the_place_is_shown(project: Project) -> None:
    project.tasks("import nosuchmodule\n")
    done = project.run("tasks", "--debug")
    assert done.code == 2
    assert "Traceback (most recent call last):" in done.err
    assert done.err.splitlines()[-1].startswith("Error: ")


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def test_a_server_that_is_not_there(project: Project) -> None:
    project.tasks(TASKS)
    project.environ["JFAST_DB_DSN"] = f"postgresql://jfast:s3cret@127.0.0.1:{closed_port()}/app"
    for command in (
        ["jobs", "retry", "x"],
        ["enqueue", "shop.hello"],
        ["db", "upgrade"],
        ["stats", "--debug"],
    ):
        done = project.run(*command)
        assert done.code == 3, done.err
        assert "s3cret" not in done.out + done.err
        if "--debug" not in command:
            refused(done, 3, "database")


def test_a_wrong_password_is_never_shown(project: Project, postgres_dsn: str) -> None:
    wrong = postgres_dsn.replace(urlsplit(postgres_dsn).password or "", "wr0ngpass", 1)
    assert "wr0ngpass" in wrong
    project.environ["JFAST_DB_DSN"] = wrong
    for command in (["stats", "--debug"], ["db", "upgrade"], ["doctor", "--json"]):
        done = project.run(*command)
        assert done.code == (1 if command[0] == "doctor" else 3), done.err
        assert "wr0ngpass" not in done.out + done.err
    shown = project.ok("config", "show", "--json")
    assert "wr0ngpass" not in shown.out
    assert ":***@" in shown.out


def test_a_full_disk_loses_nothing_and_is_said(project: Project) -> None:
    """SQLite's own limit of pages stands for the disk: it answers the same "database or disk is full"."""
    project.tasks(TASKS)
    project.ok("enqueue", "shop.hello", "--id", "before")
    # A limit of pages belongs to a connection, so it is given to the command's through a module it imports.
    (project.folder / "full.py").write_text(
        "from sqlalchemy import Engine, event\n"
        "@event.listens_for(Engine, 'connect')\n"
        "def limit(connection, record):\n"
        "    used = connection.execute('PRAGMA page_count').fetchone()[0]\n"
        "    connection.execute(f'PRAGMA max_page_count = {used}')\n"
    )
    (project.folder / "payload.json").write_text('{"x": "' + "y" * 200_000 + '"}')
    done = project.run("enqueue", "shop.hello", "@payload.json", "--import", "full")
    refused(done, 3, "full")
    assert [row["id"] for row in project.ok("jobs", "list", "--json").json] == ["before"]


def test_a_file_that_is_no_database(project: Project) -> None:
    (project.folder / "jfast.db").write_text("this is not a database, and it is long enough to be looked at" * 20)
    done = project.run("stats")
    refused(done, 3, "file is not a database", str(project.folder / "jfast.db"))


def test_a_folder_that_is_not_there(project: Project) -> None:
    project.environ["JFAST_DB_DSN"] = f"sqlite:///{project.folder}/missing/jfast.db"
    done = project.run("stats")
    refused(done, 3, "unable to open database file", str(project.folder / "missing" / "jfast.db"))


def test_db_upgrade_and_status(project: Project) -> None:
    missing = project.run("db", "status", "--json")
    assert missing.code == 4
    assert missing.json["current"] is False
    assert project.ok("db", "upgrade", "--json").json["applied"]
    assert project.ok("db", "upgrade").out == "Everything is up to date.\n"
    status = project.ok("db", "status", "--json").json
    assert {part["component"] for part in status["components"]} >= {"jfast_jobs", "jfast_inbox"}
    assert status["current"] is True


def test_in_prod_old_tables_stop_everything_but_the_upgrade(project: Project) -> None:
    project.environ["JFAST_ENV"] = "prod"
    for command in (["stats"], ["worker", "--drain"]):
        refused(project.run(*command), 4, "jfast-sync db upgrade")
    project.ok("db", "upgrade")
    project.ok("stats")
    project.ok("worker", "--drain")


def test_tables_of_a_newer_release(project: Project) -> None:
    project.ok("db", "upgrade")
    with sqlite3.connect(project.folder / "jfast.db") as connection:
        connection.execute("UPDATE jfast_schema SET version = 999")
    connection.close()
    refused(project.run("stats"), 4, "999", "upgrade jfast-sync")
    refused(project.run("db", "upgrade"), 4, "999")
    assert project.run("db", "status").code == 4
    assert project.run("doctor", "--json").json["checks"][-1]["fix"].startswith("install a newer jfast-sync")


@pytest.mark.parametrize("arguments", [["tasks"], ["stats"], ["jobs", "list"], ["doctor"], ["enqueue", "shop.hello"]])
def test_what_modules_print_when_imported_is_not_part_of_a_result(project: Project, arguments: list[str]) -> None:
    project.tasks(TASKS + 'print("imported")\n')
    done = project.ok(*arguments, "--json")
    assert isinstance(done.json, dict | list)
    assert "imported" in done.err


def test_a_worker_leaves_the_output_to_its_app(project: Project) -> None:
    project.tasks(TASKS + 'print("imported")\n')
    assert project.ok("worker", "--drain").out == "imported\n"


def test_the_doctor_is_content_with_a_healthy_project(project: Project) -> None:
    project.tasks(TASKS)
    project.ok("db", "upgrade")
    report = project.ok("doctor", "--json").json
    assert report["healthy"] is True
    # This machine's own zones may be older than the package's, which is a warning.
    assert {check["status"] for check in report["checks"] if check["name"] != "zones"} == {"ok"}
    assert {check["name"] for check in report["checks"]} == {
        "python",
        "sqlite",
        "zones",
        "config",
        "driver",
        "tasks",
        "database",
        "schema",
        "queue",
    }
    assert project.ok("doctor").out.count("ok    ") >= len(report["checks"]) - 1


def test_the_doctor_names_what_is_wrong_and_the_fix(project: Project) -> None:
    file = project.tasks("import nosuchmodule\n")
    project.environ["JFAST_DB_DSN"] = f"postgresql://jfast:s3cret@127.0.0.1:{closed_port()}/app"
    done = project.run("doctor")
    assert done.code == 1
    assert "s3cret" not in done.out + done.err
    tasks, database = (line for line in done.out.splitlines() if line.startswith("FAIL"))
    assert str(file) in tasks
    assert "127.0.0.1" in database
    assert "start the server" in done.out
    assert "2 problems found." in done.out


def test_the_doctor_blames_the_server_where_building_the_app_needs_it(project: Project) -> None:
    project.environ["JFAST_DB_DSN"] = f"postgresql://jfast:s3cret@127.0.0.1:{closed_port()}/app"
    (project.folder / "main.py").write_text(
        "from jfast_sync import connect\napp = connect()\nwith app.session() as session:\n    session.connection()\n"
    )
    checks = {check["name"]: check for check in project.run("doctor", "--json").json["checks"]}
    assert "see the database below" in checks["tasks"]["fix"]
    assert "start the server" in checks["database"]["fix"]


def test_the_doctor_stops_at_a_broken_configuration(project: Project) -> None:
    project.config("[app]\nport = 0\n")
    done = project.run("doctor", "--json")
    assert done.code == 1
    assert done.json["checks"][-1]["name"] == "config"
    assert done.json["checks"][-1]["status"] == "fail"


def test_the_installed_command_is_the_same(project: Project) -> None:
    command = shutil.which("jfast-sync")
    assert command is not None
    done = subprocess.run(
        [command, "config", "show"], cwd=project.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("File: none")
