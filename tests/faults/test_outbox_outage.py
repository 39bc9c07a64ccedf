"""A queue that is away while jobs are written: said at once, and everything arrives afterwards."""

from __future__ import annotations

import operator
import statistics
import time
from functools import partial

import pytest

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.job import Job
from jfast_sync.tasks.registry import Registry, isolated
from tests.waiting import eventually


@pytest.fixture
def opened(postgres_dsn, killable_redis):
    overrides = {
        "plugins": {"enabled": ["database", "queue", "outbox", "cache"]},
        "database": {"dsn": postgres_dsn},
        "cache": {"url": killable_redis.url},
        "queue": {"backend": "redis"},
    }
    with isolated(), JFast(load_config(overrides=overrides), tasks=Registry()) as jf:
        jf.setup()
        yield jf


@pytest.mark.parametrize("seconds", [2.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_redis_away_under_load(opened, killable_redis, seconds):
    jf = opened
    done = []

    @jf.tasks.task("t")
    def run(job: Job) -> None:
        done.append(job.id)

    jf.start_worker(threads=2, grace=1.0)
    ids = write(jf, 20)
    eventually(lambda: len(done), 20, until=lambda count: count == 20)

    killable_redis.kill()
    away = time.monotonic()
    ids += write(jf, 20)
    health = eventually(jf.checks()["outbox"].ask, 2, until=lambda found: found.status == "degraded")
    assert "cannot be sent" in health.detail and health.meta["failing"] > 0
    while time.monotonic() - away < seconds:
        ids += write(jf, 5)
    killable_redis.start()

    eventually(lambda: set(done), 60, until=lambda found: found >= set(ids), what="every job", interval=0.05)
    eventually(jf.checks()["outbox"].ask, 60, until=lambda found: found.healthy)


@pytest.mark.timed
def test_from_commit_to_start(opened):
    jf = opened
    started = []

    @jf.tasks.task("t")
    def run(job: Job) -> None:
        started.append(time.monotonic())

    jf.start_worker(threads=2, grace=1.0)
    latencies = []
    for number in range(1, 42):
        write(jf, 1)
        committed = time.monotonic()
        eventually(lambda: len(started), 10, until=partial(operator.le, number), interval=0.001)
        latencies.append(started[-1] - committed)

    print(f"commit to start: median {statistics.median(latencies) * 1000:.1f} ms, longest {max(latencies) * 1000:.1f}")
    assert statistics.median(latencies) < 0.020


def write(jf, count):
    with jf.session() as session:
        return jf.outbox.enqueue_many(session, [Job(task="t") for _ in range(count)])
