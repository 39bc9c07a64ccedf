"""A queue that is away while jobs are written: said at once, and everything arrives afterwards, with one effect."""

from __future__ import annotations

import operator
import statistics
import time
from collections import Counter
from functools import partial

import pytest
from sqlalchemy import text

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.job import Job
from jfast_sync.messaging import delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.outbox.table import OutboxTable
from jfast_sync.tasks import TaskSession
from jfast_sync.tasks.registry import Registry, isolated
from tests.servers.rabbitmq import SETTLING_SECONDS
from tests.waiting import eventually

_QUICK = 0.02


@pytest.fixture(params=["redis", "rabbitmq"])
def server(request):
    """The server of the queue; this test may kill it."""
    return request.getfixturevalue(f"killable_{request.param}")


@pytest.fixture
def configured(postgres_dsn, server):
    """A configuration with its database on PostgreSQL and its queue in the server."""
    overrides = {"plugins": {"enabled": ["database", "queue", "outbox", "cache"]}, "database": {"dsn": postgres_dsn}}
    if server.title == "RabbitMQ":
        overrides["queue"] = {"backend": "rabbitmq", "rabbitmq_url": server.url, "name": server.new_name()}
    else:
        overrides |= {"queue": {"backend": "redis"}, "cache": {"url": server.url}}
    return load_config(overrides=overrides)


@pytest.fixture
def opened(configured):
    with isolated(), JFast(configured, tasks=Registry()) as jf:
        jf.setup()
        yield jf


@pytest.fixture
def effects(opened):
    """Declare a task with an effect; return a function that counts each job's effects."""
    with opened.session() as session:
        session.execute(text("CREATE TABLE effects (id text)"))

    @opened.tasks.task("t")
    def run(job: Job, session: TaskSession) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": job.id})

    def count():
        with opened.session() as session:
            return Counter(session.execute(text("SELECT id FROM effects")).scalars())

    return count


def write(jf, count):
    with jf.session() as session:
        return jf.outbox.enqueue_many(session, [Job(task="t") for _ in range(count)])


def write_for(jf, seconds):
    """Write jobs for so long: the load."""
    ids, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        ids += write(jf, 5)
        time.sleep(_QUICK)  # the pace of the load
    return ids


@pytest.mark.parametrize("seconds", [2.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_a_server_away_under_load(opened, server, effects, seconds):
    jf = opened
    jf.start_worker(threads=2, grace=1.0)
    ids = write(jf, 20)
    eventually(lambda: len(effects()), 20, until=lambda count: count == 20, interval=0.05)
    if server.title == "RabbitMQ":
        ids += write_for(jf, SETTLING_SECONDS)

    server.kill()
    away = time.monotonic()
    ids += write(jf, 20)
    health = eventually(jf.checks()["outbox"].ask, 2, until=lambda found: found.status == "degraded")
    noticed = time.monotonic() - away
    assert "cannot be sent" in health.detail and health.meta["failing"] > 0
    assert server.title in health.detail
    ids += write_for(jf, seconds - noticed)
    server.start()
    back = time.monotonic()

    eventually(lambda: len(effects()), 90, until=lambda count: count >= len(ids), what="every job", interval=0.1)
    delivered = time.monotonic() - back
    eventually(jf.checks()["outbox"].ask, 60, until=lambda found: found.healthy)
    print(
        f"{server.title} away for {seconds:g} s: degraded after {noticed:.2f} s ({health.detail}), {len(ids)} jobs all "
        f"done {delivered:.1f} s after it was back"
    )
    assert effects() == Counter(ids)
    assert jf.messages.stats().dead == 0


def test_a_server_killed_between_send_and_mark(opened, server, effects):
    """What it has taken is marked as sent and never sent again: it has to be there when the server is back."""
    jf = opened
    if server.title == "RabbitMQ":
        time.sleep(SETTLING_SECONDS)  # a queue that is younger may stay without a leader

    class Killing(OutboxTable):
        def mark(self, *args, **options):
            server.kill()
            return super().mark(*args, **options)

    ids = write(jf, 300)
    assert Relay(Killing(jf.database), delivery(jf), RelayOptions(batch_size=200)).run_once() == 200
    assert jf.messages.stats().published == 200
    server.start()

    jf.start_worker(threads=2, grace=1.0)
    eventually(lambda: len(effects()), 90, until=lambda count: count >= len(ids), what="every job", interval=0.1)
    eventually(jf.messages.stats, until=lambda stats: stats.published == 300)
    assert effects() == Counter(ids)


def test_from_commit_to_start(opened, server):
    jf = opened
    started = []

    @jf.tasks.task("t")
    def run(job: Job) -> None:
        started.append(time.monotonic())

    jf.start_worker(threads=2, grace=1.0)
    latencies = _latencies(jf, started)

    print(
        f"{server.title}, commit to start: median {statistics.median(latencies) * 1000:.1f} ms, "
        f"longest {max(latencies) * 1000:.1f}"
    )
    assert statistics.median(latencies) < 0.020


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_from_a_commit_where_no_relay_runs_to_start(opened, configured):
    """A script's job is brought by the relay of a worker, which hears of the commit."""
    started = []

    @opened.tasks.task("t")
    def run(job: Job) -> None:
        started.append(time.monotonic())

    opened.start_worker(threads=2, grace=1.0)
    with JFast(configured, tasks=Registry()) as script:
        latencies = _latencies(script, started)

    print(f"commit elsewhere to start: median {statistics.median(latencies) * 1000:.1f} ms")
    assert statistics.median(latencies) < 0.1  # looking once a second, it would be half of one


def _latencies(jf, started):
    latencies = []
    for number in range(1, 42):
        write(jf, 1)
        committed = time.monotonic()
        eventually(lambda: len(started), 10, until=partial(operator.le, number), interval=0.001)
        latencies.append(started[-1] - committed)
    return latencies
