"""The commands on a RabbitMQ queue: what they show and change, and what they say where a broker cannot answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jfast_sync import connect
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.contract.backends import unused_port
from tests.integration.cli import TASKS, Project
from tests.servers.rabbitmq import RabbitServer

CONFIG = """
[plugin.queue]
backend = "rabbitmq"
name = "{name}"
rabbitmq_url = "{url}"
"""


@pytest.fixture
def name(rabbitmq_server: RabbitServer) -> str:
    return rabbitmq_server.new_name()


@pytest.fixture
def project(tmp_path: Path, rabbitmq_url: str, name: str) -> Project:
    made = Project(tmp_path)
    made.tasks(TASKS)
    made.config(CONFIG.format(name=name, url=rabbitmq_url))
    return made


def test_jobs_are_counted_and_only_dead_ones_listed(project: Project):
    job_id = project.ok("enqueue", "shop.hello", '{"n": 1}', "--tenant", "acme", "--delay", "1h").out.strip()
    depths = project.ok("stats", "--json").json["depths"]
    assert (depths["ready"], depths["delayed"]) == (0, 1)
    listed = project.ok("jobs", "list", "--json")
    assert listed.json == []
    assert "jobs dead" in listed.err
    assert "jfast-sync stats" in listed.err
    refused = project.run("jobs", "list", "--state", "delayed")
    assert refused.code != 0
    assert "cannot be listed" in refused.err
    for command in ("show", "cancel"):
        unknown = project.run("jobs", command, job_id)
        assert unknown.code != 0
        assert "jfast-sync stats" in unknown.err


def test_dead_letters_are_listed_shown_replayed_and_discarded(project: Project):
    project.ok("enqueue", "shop.fail", "--lines", "-", "--id", "x", text='{"n": 1}\n{"n": 2}')
    project.ok("worker", "--drain", "--threads", "1")
    rows = project.ok("jobs", "list", "--json").json
    assert {(row["id"], row["state"], row["error"]) for row in rows} == {
        ("x-1", "dead", "ValueError: cannot do 1"), ("x-2", "dead", "ValueError: cannot do 2"),
    }  # fmt: skip
    assert project.ok("jobs", "list", "--queue", "mail", "--json").json == []
    shown = project.ok("jobs", "show", "x-1", "--json").json
    assert (shown["payload"], "ValueError" in shown["traceback"]) == ({"n": 1}, True)
    assert len(project.ok("jobs", "dead", "--json").json) == 2
    project.ok("jobs", "retry", "x-1")
    project.ok("jobs", "discard", "--all", "--yes")
    unknown = project.run("jobs", "retry", "nobody")
    assert (unknown.code, "nobody" in unknown.err) == (1, True)
    depths = project.ok("stats", "--json").json["depths"]
    assert (depths["ready"], depths["dead"]) == (1, 0)


def test_doctor_finds_a_policy_and_says_what_it_cannot_see(project: Project, rabbitmq_server: RabbitServer, name: str):
    project.ok("stats")  # makes the tables
    prefix = name.replace("_", ".")
    healthy = project.ok("doctor").out
    assert "overrides" not in healthy
    command = "rabbitmqctl list_policies -p /"
    assert command in healthy
    assert "rabbitmqctl list_operator_policies -p /" in healthy
    rabbitmq_server.control(
        "set_policy", name, rf"^{prefix}\.delay\.", json.dumps({"overflow": "drop-head"}), "--apply-to", "queues"
    )
    try:
        assert "overrides overflow" in project.run("doctor").out
        with connect(project.folder) as jf:
            backend = jf.queue.backend
            assert isinstance(backend, RabbitQueue)
            assert backend.policies.look(20), "/ready takes less time for it: there, a slow broker's answer comes later"
            health = jf.checks()["queue"]()
        assert health.status == "degraded"
        assert "overrides overflow" in health.detail
        listed = rabbitmq_server.control(*command.split()[1:])
        assert any(name in line and "drop-head" in line for line in listed.splitlines())
    finally:
        rabbitmq_server.control("clear_policy", name)


@pytest.mark.parametrize("command", [["stats"], ["jobs", "list"], ["enqueue", "shop.hello", "{}"], ["jobs", "dead"]])
def test_a_server_that_is_not_there_is_one_sentence(project: Project, command: list[str]):
    project.config(CONFIG.format(name="jfast_jobs", url=f"amqp://shop:s3cret@127.0.0.1:{unused_port()}/"))
    done = project.run(*command)
    assert done.code == 3
    assert "RabbitMQ" in done.err
    assert "cannot be reached" in done.err
    assert "s3cret" not in done.err
    assert len(done.err.strip().splitlines()) == 1
