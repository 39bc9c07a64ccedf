"""Relays that are killed between sending and marking: nothing is lost, and what is sent twice has one effect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest
from sqlalchemy import text

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.job import Job
from jfast_sync.outbox.delivery import Delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql.engine import Database
from jfast_sync.tasks import TaskSession
from jfast_sync.tasks.registry import Registry, isolated

_KILLED = """
import json, os, signal, sys
from jfast_sync.messaging import delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.outbox.table import OutboxTable
from tests.faults.test_outbox_killed import app

class Killed(OutboxTable):
    def mark(self, *args, **options):
        os.kill(os.getpid(), signal.SIGKILL)

jf = app(json.loads(sys.argv[1]))
Relay(Killed(jf.database), delivery(jf), RelayOptions(batch_size=7)).run_once()
"""


def app(options):
    """Build the app whose outbox is on PostgreSQL and whose queue is elsewhere: in a server or in a SQLite file."""
    config = load_config(overrides=options["overrides"])
    if options["sqlite"] is None:
        return JFast(config, tasks=Registry())
    return JFast(config, tasks=Registry(), queue=SqlQueue(Database(options["sqlite"]), listen=False))


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def options(request, postgres_dsn):
    overrides = {
        "plugins": {"enabled": ["database", "queue", "outbox", "cache"]},
        "database": {"dsn": postgres_dsn},
        "outbox": {"relay": False},
    }
    sqlite = None
    match request.param:
        case "sqlite":
            sqlite = request.getfixturevalue("sqlite_dsn")
        case "redis":
            overrides |= {"queue": {"backend": "redis"}, "cache": {"url": request.getfixturevalue("redis_url")}}
        case _:
            name = request.getfixturevalue("rabbitmq_server").new_name()
            url = request.getfixturevalue("rabbitmq_url")
            overrides["queue"] = {"backend": "rabbitmq", "rabbitmq_url": url, "name": name}
    return {"overrides": overrides, "sqlite": sqlite}


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_between_send_and_mark(options, rounds):
    starts: Counter[str] = Counter()
    with isolated(), app(options) as jf:
        jf.setup()

        @jf.tasks.task("effect")
        def effect(job: Job, session: TaskSession) -> None:
            starts[job.id] += 1
            session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": job.id})

        with jf.session() as session:
            session.execute(text("CREATE TABLE effects (id text)"))
        ids = []
        for number in range(rounds):
            with jf.session() as session:
                ids += jf.outbox.enqueue_many(session, [Job(task="effect") for _ in range(10)])
            command = [sys.executable, "-c", _KILLED, json.dumps(options)]
            killed = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            if number % 5 == 0:  # what was sent is run, and gone from the queue, before it is sent again
                drain(jf)
            with jf.session() as session:  # the dead relay's lease ends
                session.execute(text("UPDATE jfast_outbox SET available_at = now() WHERE status = 'pending'"))

        relay = Relay(jf.messages, Delivery(jf.queue.backend, None), RelayOptions())
        while relay.run_once():
            pass
        skipped = drain(jf)

        with jf.session() as session:
            effects = session.execute(text("SELECT id FROM effects")).scalars().all()
        assert sorted(effects) == sorted(ids)
        assert set(starts) == set(ids)
        assert skipped > 0  # second copies came, under the same ids, and the inbox took them
        stats = jf.messages.stats()
        assert (stats.pending, stats.dead, stats.published) == (0, 0, len(ids))
        print(f"{rounds} relays killed: {len(ids)} jobs, {len(effects)} effects")


def drain(jf):
    worker = jf.worker(threads=2, drain=True, drain_horizon=0.0)
    assert worker.run() == 0
    return worker.counts.skipped
