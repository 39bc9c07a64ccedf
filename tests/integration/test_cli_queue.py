"""The commands that look at the queue and change it, each in a process of its own, on SQLite."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.cli import TASKS, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.tasks(TASKS)
    return made


def bury(project: Project, *payloads: str, tenant: str = "none") -> list[str]:
    """Let jobs fail for good and return their ids."""
    prefix = f"dead-{tenant}-{payloads[0][-2]}"
    project.ok("enqueue", "shop.fail", "--lines", "-", "--id", prefix, "--tenant", tenant, text="\n".join(payloads))
    project.ok("worker", "--drain", "--threads", "1")
    return [f"{prefix}-{number}" for number in range(1, len(payloads) + 1)]


def test_a_job_goes_in_is_seen_and_is_run(project: Project) -> None:
    job_id = project.ok("enqueue", "shop.hello", '{"n": 1}', "--tenant", "acme", "--priority", "2").out.strip()
    assert len(job_id) == 32
    (row,) = project.ok("jobs", "list", "--json").json
    assert list(row) == [
        "id",
        "task",
        "queue",
        "state",
        "priority",
        "attempts",
        "max_attempts",
        "tenant_id",
        "available_at",
        "created_at",
        "error",
    ]
    assert (row["id"], row["state"], row["tenant_id"], row["priority"]) == (job_id, "ready", "acme", 2)
    assert project.ok("stats", "--json").json["depths"] == {"ready": 1, "delayed": 0, "running": 0, "dead": 0}
    project.ok("worker", "--drain")
    assert project.ok("stats", "--json").json["depths"]["ready"] == 0
    assert project.ok("stats", "--json").json["done"] == {"shop.hello": 1}
    assert project.ok("jobs", "list").out == "No jobs.\n"


def test_an_id_of_ones_own_is_stored_once(project: Project) -> None:
    for _ in range(2):
        assert project.ok("enqueue", "shop.hello", "{}", "--id", "import-7").out == "import-7\n"
    assert len(project.ok("jobs", "list", "--json").json) == 1


def test_options_of_a_job_arrive(project: Project) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    project.ok("enqueue", "shop.hello", "--at", at.isoformat(), "--queue", "slow", "--max-attempts", "7", "--id", "a")
    project.ok("enqueue", "shop.hello", "--delay", "1h", "--id", "b")
    a = project.ok("jobs", "show", "a", "--json").json
    assert (a["state"], a["queue"], a["max_attempts"], a["payload"]) == ("delayed", "slow", 7, {})
    assert datetime.fromisoformat(a["available_at"]) == at
    b = project.ok("jobs", "show", "b", "--json").json
    assert timedelta(minutes=59) < datetime.fromisoformat(b["available_at"]) - datetime.now(UTC) <= timedelta(hours=1)
    assert "state:     delayed" in project.ok("jobs", "show", "b").out


@pytest.mark.parametrize("source", ["-", "@payload.json"])
def test_a_payload_from_a_file_or_the_standard_input(project: Project, source: str) -> None:
    (project.folder / "payload.json").write_text('{"n": "é"}')
    project.ok("enqueue", "shop.hello", source, "--id", "x", text='{"n": "é"}')
    assert project.ok("jobs", "show", "x", "--json").json["payload"] == {"n": "é"}


def test_an_unknown_task_is_refused_naming_the_nearest_and_can_be_forced(project: Project) -> None:
    refused = project.run("enqueue", "shop.helo", "{}")
    assert (refused.code, refused.out) == (1, "")
    assert "did you mean 'shop.hello'" in refused.err
    assert "--force" in refused.err
    project.ok("enqueue", "other.service", "{}", "--force")
    assert project.ok("jobs", "list", "--json").json[0]["task"] == "other.service"


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"a":', "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"a": NaN}', "NaN"),
        (r'{"a": {"b": "\u0000"}}', "a.b"),
        (r'{"a": "\ud800"}', "a"),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_and_nothing_is(project: Project, payload: str, said: str) -> None:
    refused = project.run("enqueue", "shop.hello", payload)
    assert (refused.code, refused.out) == (1, "")
    assert said in refused.err
    assert project.ok("jobs", "list", "--json").json == []


def test_a_payload_that_does_not_fit_its_task_is_refused(project: Project) -> None:
    project.tasks(
        """
        from dataclasses import dataclass
        from jfast_sync.tasks import task

        @dataclass
        class Invoice:
            number: int

        @task("typed.send")
        def send(invoice: Invoice): ...
        """,
        module="typed",
    )
    refused = project.run("enqueue", "typed.send", '{"number": "seven"}')
    assert refused.code == 1
    assert "number" in refused.err
    refused = project.run("enqueue", "typed.send", "--lines", "-", text='{"number": 1}\n{"nummer": 2}\n')
    assert refused.code == 1
    assert "standard input:2: " in refused.err
    assert project.ok("jobs", "list", "--json").json == []
    project.ok("enqueue", "typed.send", '{"number": 7}')


def test_five_megabytes_are_too_large(project: Project) -> None:
    (project.folder / "big.json").write_text(json.dumps({"text": "x" * 5_000_000}))
    refused = project.run("enqueue", "shop.hello", "@big.json")
    assert refused.code == 1
    assert "1,048,576 are allowed" in refused.err
    assert len(refused.err) < 1000


def test_many_jobs_from_lines(project: Project) -> None:
    (project.folder / "jobs.jsonl").write_text("".join(f'{{"n": {n}}}\n\n' for n in range(2500)))
    done = project.ok("enqueue", "shop.hello", "--lines", "jobs.jsonl", "--id", "import")
    assert done.out == "2500 jobs enqueued.\n"
    assert project.ok("stats", "--json").json["depths"]["ready"] == 2500
    assert project.ok("jobs", "show", "import-3", "--json").json["payload"] == {"n": 1}
    again = project.ok("enqueue", "shop.hello", "--lines", "jobs.jsonl", "--id", "import", "--json").json
    assert again == {"task": "shop.hello", "jobs": 2500}
    assert project.ok("stats", "--json").json["depths"]["ready"] == 2500


def test_one_bad_line_stores_nothing_and_is_named(project: Project) -> None:
    lines = '{"n": 1}\n' * 1200 + '{"n": }\n' + '{"n": 2}\n'
    refused = project.run("enqueue", "shop.hello", "--lines", "-", text=lines)
    assert refused.code == 1
    assert "standard input:1201 is not JSON" in refused.err
    assert "nothing was stored" in refused.err
    assert project.ok("jobs", "list", "--json").json == []
    assert project.ok("enqueue", "shop.hello", "--lines", "-", text='{"n": 1}\n').out == "1 job enqueued.\n"


def test_a_pipe_is_read_whole_as_well(project: Project) -> None:
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    command = project.start("enqueue", "shop.hello", "--lines", "pipe")
    pipe.write_text('{"n": 1}\n{"n": 2}\n')
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out, err) == (0, "2 jobs enqueued.\n", "")


def test_dead_letters_are_listed_newest_first_with_their_error(project: Project) -> None:
    first, second = bury(project, '{"n": 1}')[0], bury(project, '{"n": 2}', tenant="acme")[0]
    letters = project.ok("jobs", "dead", "--json").json
    assert [letter["id"] for letter in letters] == [second, first]
    assert list(letters[0]) == ["id", "task", "payload", "attempts", "max_attempts", "tenant_id", "error", "created_at"]
    assert letters[0]["error"] == "ValueError: cannot do 2"
    assert letters[0]["payload"] == {"n": 2}
    lines = project.ok("jobs", "dead").out.splitlines()
    assert lines[0].startswith(f"{second}  shop.fail  1/1  tenant acme  ")
    assert lines[1] == "    ValueError: cannot do 2"
    assert [letter["id"] for letter in project.ok("jobs", "dead", "--tenant", "acme", "--json").json] == [second]
    assert project.ok("jobs", "dead", "--task", "shop.hello").out == "No dead letters.\n"
    assert len(project.ok("jobs", "dead", "--limit", "1", "--json").json) == 1
    shown = project.ok("jobs", "show", first)
    assert "ValueError: cannot do 1" in shown.out
    assert "tasks.py" in shown.out  # where it was raised


def test_retry_puts_dead_letters_back_and_names_unknown_ids(project: Project) -> None:
    dead = bury(project, '{"n": 1}', '{"n": 2}')
    done = project.run("jobs", "retry", dead[0], "nosuchid")
    assert done.code == 1
    assert done.out == "1 dead letter retried.\n"
    assert done.err == "Error: no such dead letter: nosuchid\n"
    row = project.ok("jobs", "show", dead[0], "--json").json
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert project.ok("jobs", "show", dead[1], "--json").json["state"] == "dead"


def test_retry_all_takes_filters(project: Project) -> None:
    bury(project, '{"n": 1}', '{"n": 2}')
    acme = bury(project, '{"n": 3}', tenant="acme")
    assert project.ok("jobs", "retry", "--all", "--since", "2999-01-01T00:00:00Z").out == "No dead letters match.\n"
    assert project.ok("jobs", "retry", "--all", "--tenant", "acme", "--since", "1h", "--json").json == {"count": 1}
    assert [row["id"] for row in project.ok("jobs", "list", "--state", "ready", "--json").json] == acme
    assert project.ok("jobs", "retry", "--all").out == "2 dead letters retried.\n"


def test_discard_asks_and_removes_for_good(project: Project) -> None:
    dead = bury(project, '{"n": 1}', '{"n": 2}', '{"n": 3}')
    for answer in ("n\n", ""):
        asked = project.run("jobs", "discard", "--all", text=answer)
        assert asked.code == 1
        assert "Remove 3 dead letters for good?" in asked.err
    assert len(project.ok("jobs", "dead", "--json").json) == 3
    assert project.ok("jobs", "discard", dead[0], text="y\n").out == "1 dead letter discarded.\n"
    gone = project.run("jobs", "discard", dead[0], dead[1], "--yes", "--json")
    assert (gone.code, gone.json) == (1, {"discarded": [dead[1]], "unknown": [dead[0]]})
    assert project.ok("jobs", "discard", "--all", "--yes").out == "1 dead letter discarded.\n"
    assert project.ok("jobs", "dead", "--json").json == []


def test_cancel_removes_what_waits_and_says_what_it_cannot(project: Project) -> None:
    (dead,) = bury(project, '{"n": 1}')
    project.ok("enqueue", "shop.hello", "--delay", "1h", "--id", "later")
    assert project.ok("jobs", "cancel", "later").out == "later: removed\n"
    refused = project.run("jobs", "cancel", "later", dead)
    assert refused.code == 1
    assert "later: no job with this id waits or runs" in refused.err
    assert "jobs discard" in refused.err


def test_show_of_an_unknown_id(project: Project) -> None:
    unknown = project.run("jobs", "show", "nosuchid")
    assert (unknown.code, unknown.out) == (1, "")
    assert "nosuchid" in unknown.err


def test_a_finished_job_is_shown_where_it_is_kept(project: Project) -> None:
    project.config("[plugin.queue]\nkeep_done = 3600\n")
    project.ok("enqueue", "shop.hello", "--id", "a")
    project.ok("worker", "--drain")
    shown = project.ok("jobs", "show", "a")
    assert "state:     done at 2" in shown.out
    assert ", ran " in shown.out
    row = project.ok("jobs", "show", "a", "--json").json
    assert row["state"] == "done"
    assert row["ran_seconds"] >= 0
    assert row["finished_at"].endswith("+00:00")
    assert [job["id"] for job in project.ok("jobs", "list", "--state", "done", "--json").json] == ["a"]


def test_stats_for_people(project: Project) -> None:
    bury(project, '{"n": 1}')
    project.ok("enqueue", "shop.hello")
    out = project.ok("stats").out
    assert "Queue jfast_jobs (sqlite)" in out
    assert "see: jfast-sync jobs dead" in out
    assert "the oldest has waited" in out


def test_watching_ends_quietly_with_ctrl_c(project: Project) -> None:
    import signal

    watching = project.start("stats", "--watch", "--every", "100ms", "--json")
    assert watching.stdout is not None
    first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
    assert first["depths"] == second["depths"]
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err.strip()) == (130, "")


def test_tasks(project: Project) -> None:
    listed = project.ok("tasks", "--json").json
    assert [(task["name"], task["module"], task["max_attempts"]) for task in listed] == [
        ("shop.fail", "shop", 1),
        ("shop.hello", "shop", 3),
    ]
    assert "tasks.py:" in project.ok("tasks").out
