"""Relays that are killed between sending and marking: nothing is lost, and what is sent twice has one effect."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from sqlalchemy import text

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.job import Job
from jfast_sync.outbox.delivery import Delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql import schema
from jfast_sync.sql.engine import Database
from jfast_sync.tasks import TaskSession
from jfast_sync.tasks.registry import Registry, isolated

_KILLED = """
import os, signal, sys
from jfast_sync.outbox.delivery import Delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.outbox.table import OutboxTable
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql.engine import Database

class Killed(OutboxTable):
    def mark(self, *args, **options):
        os.kill(os.getpid(), signal.SIGKILL)

delivery = Delivery(SqlQueue(Database(sys.argv[2]), listen=False), None)
Relay(Killed(Database(sys.argv[1])), delivery, RelayOptions(batch_size=int(sys.argv[3]))).run_once()
"""


@pytest.mark.parametrize("rounds", [4, pytest.param(50, marks=pytest.mark.long)])
def test_killed_between_send_and_mark(postgres_dsn, sqlite_dsn, rounds):
    with isolated():
        queue_at = Database(sqlite_dsn)
        schema.upgrade(queue_at)
        queue = SqlQueue(queue_at, listen=False)
        config = load_config(overrides={"database": {"dsn": postgres_dsn}, "outbox": {"relay": False}})
        with JFast(config, tasks=Registry(), queue=queue) as jf:
            _run(jf, postgres_dsn, sqlite_dsn, rounds)
        queue_at.dispose()


def _run(jf, outbox_dsn, queue_dsn, rounds):
    @jf.tasks.task("effect")
    def effect(job: Job, session: TaskSession) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": job.id})

    with jf.session() as session:
        session.execute(text("CREATE TABLE effects (id text)"))
    ids = []
    for _ in range(rounds):
        with jf.session() as session:
            ids += jf.outbox.enqueue_many(session, [Job(task="effect") for _ in range(10)])
        killed = subprocess.run([sys.executable, "-c", _KILLED, outbox_dsn, queue_dsn, "7"], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        drain(jf)  # what was sent is run, and gone from the queue, before it is sent again
        with jf.session() as session:  # the dead relay's lease ends
            session.execute(text("UPDATE jfast_outbox SET available_at = now() WHERE status = 'pending'"))

    relay = Relay(jf.messages, Delivery(jf.queue.backend, None), RelayOptions())
    while relay.run_once():
        pass
    drain(jf)

    with jf.session() as session:
        effects = session.execute(text("SELECT id FROM effects")).scalars().all()
    assert sorted(effects) == sorted(ids)
    stats = jf.messages.stats()
    assert (stats.pending, stats.dead, stats.published) == (0, 0, len(ids))


def drain(jf):
    assert jf.worker(threads=2, drain=True, drain_horizon=0.0).run() == 0
