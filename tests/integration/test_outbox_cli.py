"""``jfast-sync outbox``: what waits, what was given up, and what an operator does about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jfast_sync import connect
from jfast_sync.errors import PayloadError
from jfast_sync.job import Job
from tests.integration.cli import TASKS, Project
from tests.integration.outbox_support import opened, relay_of
from tests.servers.network import free_port


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.tasks(TASKS)
    return made


def bury(project: Project, *ids: str) -> None:
    """Let messages die on their way to a queue that refuses them."""
    with opened(f"sqlite:///{project.folder}/jfast.db") as (jf, queue):
        queue.refuse = lambda _jobs: PayloadError("will not have it")
        with jf.session() as session:
            jf.outbox.enqueue_many(session, [Job(task="shop.hello", id=one, tenant_id="acme") for one in ids])
        relay_of(jf).run_once()


def test_an_empty_outbox_is_well(project):
    done = project.ok("outbox", "status")
    assert done.out.splitlines() == ["pending    0", "failing    0", "dead       0", "published  0"]
    assert project.ok("outbox", "dead").out == "No dead messages.\n"
    assert project.ok("outbox", "dead", "--json").json == []


def test_dead_messages_are_listed_retried_and_discarded(project):
    bury(project, "one", "two", "three")

    status = project.run("outbox", "status", "--json")
    assert status.code == 1
    assert (status.json["dead"], status.json["status"]) == (3, "degraded")
    assert status.json["last_error"] == "PayloadError: will not have it"

    listed = project.ok("outbox", "dead", "--json").json
    assert list(listed[0]) == [
        "id",
        "kind",
        "destination",
        "key",
        "attempts",
        "request_id",
        "tenant_id",
        "error",
        "created_at",
        "died_at",
    ]
    assert {one["id"] for one in listed} == {"one", "two", "three"}
    shown = project.ok("outbox", "dead").out
    assert "one  job to shop.hello  1 attempts  tenant acme" in shown
    assert "    PayloadError: will not have it" in shown

    unknown = project.run("outbox", "retry", "one", "nobody", "--json")
    assert (unknown.code, unknown.json) == (1, {"retried": ["one"], "unknown": ["nobody"]})
    assert "nobody" in unknown.err
    assert project.ok("outbox", "discard", "two", "--yes").out == "1 dead message discarded.\n"
    refused = project.run("outbox", "discard", "--all", text="n\n")
    assert refused.code == 1 and "Nothing was discarded" in refused.err
    assert project.ok("outbox", "retry", "--all", "--json").json == {"count": 1}

    # The queue of this project takes them, brought by the relay of a worker that drains.
    project.ok("worker", "--drain", "--threads", "1")
    assert project.ok("outbox", "status", "--json").json["published"] == 2
    assert project.ok("stats", "--json").json["done"] == {"shop.hello": 2}


def test_wrong_usage(project):
    assert project.run("outbox", "retry").code == 6
    assert project.run("outbox", "discard", "one", "--all", "--yes").code == 6
    project.config('[plugins]\nenabled = ["database", "queue"]\n')
    done = project.run("outbox", "status")
    assert done.code == 2 and 'add "database" and "outbox"' in done.err


@pytest.mark.parametrize("url", ["redis", "amqp"])
def test_a_process_that_begins_while_the_broker_is_away_writes_and_shows_messages(tmp_path, url):
    """The outbox is there for that: what the broker needs is set up when it is back."""
    project = Project(tmp_path)
    away = f"{url}://127.0.0.1:{free_port()}/"
    project.config(
        f'[plugins]\nenabled = ["database", "cache", "queue", "outbox"]\n[plugin.cache]\nurl = "{away}"\n'
        '[plugin.queue]\nbackend = "redis"\n'
        if url == "redis"
        else f'[plugin.queue]\nbackend = "rabbitmq"\nrabbitmq_url = "{away}"\n'
    )
    with connect(project.folder) as jf, jf.session() as session:
        jf.outbox.enqueue(session, Job(task="shop.hello"))
    assert project.ok("outbox", "status", "--json").json["pending"] == 1
