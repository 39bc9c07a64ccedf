"""The commands on a Redis queue: what they show and change, and what they say of a server that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.backends import unused_port
from tests.integration.cli import TASKS, Project
from tests.servers import RedisServer

CONFIG = """
[plugins]
enabled = ["observability", "database", "queue", "outbox", "cache"]
[plugin.cache]
url = "{url}"
[plugin.queue]
backend = "redis"
keep_done = 600
"""


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Project:
    made = Project(tmp_path)
    made.tasks(TASKS)
    made.config(CONFIG.format(url=redis_url))
    return made


def test_a_job_is_enqueued_listed_run_and_shown(project: Project):
    job_id = project.ok("enqueue", "shop.hello", '{"n": 1}', "--tenant", "acme", "--priority", "2").out.strip()
    (row,) = project.ok("jobs", "list", "--json").json
    assert (row["id"], row["state"], row["tenant_id"], row["priority"]) == (job_id, "ready", "acme", 2)
    project.ok("worker", "--drain")
    assert project.ok("stats", "--json").json["done"] == {"shop.hello": 1}
    assert "done" in project.ok("jobs", "show", job_id).out


def test_dead_letters_are_listed_replayed_and_discarded(project: Project):
    project.ok("enqueue", "shop.fail", "--lines", "-", "--id", "x", text='{"n": 1}\n{"n": 2}')
    project.ok("worker", "--drain", "--threads", "1")
    dead = project.ok("jobs", "dead", "--json").json
    assert sorted(letter["id"] for letter in dead) == ["x-1", "x-2"]
    assert {letter["error"] for letter in dead} == {"ValueError: cannot do 1", "ValueError: cannot do 2"}
    project.ok("jobs", "retry", "x-1")
    project.ok("jobs", "discard", "x-2", "--yes")
    unknown = project.run("jobs", "retry", "nobody")
    assert (unknown.code, "nobody" in unknown.err) == (1, True)
    depths = project.ok("stats", "--json").json["depths"]
    assert (depths["ready"], depths["dead"]) == (1, 0)


def test_a_waiting_job_is_cancelled(project: Project):
    project.ok("enqueue", "shop.hello", "{}", "--id", "later", "--delay", "1h")
    project.ok("jobs", "cancel", "later")
    assert project.ok("jobs", "list", "--json").json == []


def test_doctor_says_what_endangers_jobs(project: Project, killable_redis: RedisServer):
    killable_redis.configure(maxmemory_policy="volatile-lru")
    project.config(CONFIG.format(url=killable_redis.url))
    try:
        project.ok("stats")  # makes the tables
        assert "maxmemory-policy is volatile-lru" in project.run("doctor").out
    finally:
        killable_redis.configure(maxmemory_policy="noeviction")


@pytest.mark.parametrize("command", [["stats"], ["jobs", "list"], ["enqueue", "shop.hello", "{}"], ["jobs", "dead"]])
def test_a_server_that_is_not_there_is_one_sentence(project: Project, command: list[str]):
    project.config(CONFIG.format(url=f"redis://:s3cret@127.0.0.1:{unused_port()}/0"))
    done = project.run(*command)
    assert done.code == 3
    assert "Redis cannot be reached" in done.err
    assert "s3cret" not in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_claiming_by_task_is_refused_when_the_configuration_is_read(project: Project, redis_url: str):
    project.config(CONFIG.format(url=redis_url) + 'claim = "registered"\n')
    done = project.run("worker", "--drain")
    assert done.code == 2
    assert "claim" in done.err


def test_the_tables_of_the_application_s_database_are_made_too(project: Project):
    project.ok("enqueue", "shop.hello", "{}")
    assert json.loads(project.ok("db", "status", "--json").out)
