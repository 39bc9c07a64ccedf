"""The asynchronous sibling's outbox table becomes ours without losing a row, and stays usable for it."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.errors import ConfigError
from jfast_sync.event import Event
from jfast_sync.job import Job
from jfast_sync.sql import schema
from jfast_sync.sql.engine import Database
from tests.integration.outbox_support import opened, relay_of

_THEIRS = """
CREATE TABLE jfast_outbox (
    id varchar(32) PRIMARY KEY, kind varchar(16) NOT NULL, destination varchar(255) NOT NULL, payload jsonb NOT NULL,
    message_key varchar(255), request_id varchar(64), tenant_id varchar(255), status varchar(16) NOT NULL,
    attempts integer NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    available_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz, last_error text)
"""
_JOB = (
    "INSERT INTO jfast_outbox (id, kind, destination, payload, status, attempts, tenant_id) VALUES (:id, 'job', 't', "
    """CAST('{"payload": {"n": 1}, "max_attempts": 4, "trace": {}}' AS jsonb), :status, 0, 'acme')"""
)
_THEIR_RELAYS_LOOK = (
    "SELECT id FROM jfast_outbox WHERE status = 'pending' AND available_at <= now() ORDER BY created_at "
    "LIMIT 100 FOR UPDATE SKIP LOCKED"
)


@pytest.fixture
def theirs(postgres_dsn):
    database = Database(postgres_dsn)
    with database.session() as session:
        session.execute(text(_THEIRS))
        for job_id, status in (("waits", "pending"), ("died", "dead"), ("sent", "published")):
            session.execute(text(_JOB), {"id": job_id, "status": status})
    yield database
    database.dispose()


def test_rows_that_were_there_are_sent(theirs, postgres_dsn):
    with opened(postgres_dsn) as (jf, queue):
        assert relay_of(jf).run_once() == 1
        assert jf.messages.revive_all() == 1
        assert relay_of(jf).run_once() == 1
        assert queue.given == ["waits", "died"]
        job = next(row.job for row in queue.jobs() if row.job.id == "waits")
        assert (job.task, job.payload, job.max_attempts, job.tenant_id) == ("t", {"n": 1}, 4, "acme")


def test_the_sibling_goes_on_writing_and_ids_have_room(theirs, postgres_dsn):
    with opened(postgres_dsn) as (jf, queue):
        with theirs.session() as session:
            session.execute(text(_JOB), {"id": "later", "status": "pending"})
        with jf.session() as session:
            jf.outbox.enqueue(session, Job(task="t", id="x" * 128, request_id="r" * 128))
        while relay_of(jf).run_once():
            pass
        assert set(queue.given) == {"waits", "later", "x" * 128}


def test_two_kinds_of_relays_do_not_take_the_same_row(theirs, postgres_dsn):
    with opened(postgres_dsn) as (jf, _):
        leased = jf.messages.lease(10, 60.0)
        assert [message.id for message in leased.messages] == ["waits"]
        with theirs.session() as session:
            assert session.execute(text(_THEIR_RELAYS_LOOK)).scalars().all() == []
        jf.messages.mark(leased.token, unsent=leased.messages)

        with theirs.session() as session:
            assert session.execute(text(_THEIR_RELAYS_LOOK)).scalars().all() == ["waits"]
            assert jf.messages.lease(10, 60.0).messages == ()


def test_an_event_row_reads_as_the_sibling_writes_it(theirs, postgres_dsn):
    bus = RecordingBus()
    with opened(postgres_dsn, bus=bus) as (jf, _):
        event = Event(type="x", data={"n": 1}, key="k", tenant_id="acme")
        with jf.session() as session:
            jf.outbox.publish(session, "orders", event)
            row = session.execute(text("SELECT * FROM jfast_outbox WHERE kind = 'event'")).one()
        assert (row.id, row.destination, row.payload, row.message_key) == (event.id, "orders", event.to_dict(), "k")


def test_upgrading_twice_changes_nothing(theirs):
    assert "outbox in jfast_outbox" in schema.upgrade(theirs)
    assert schema.upgrade(theirs) == []
    with theirs.session() as session:
        session.execute(text("DELETE FROM jfast_schema WHERE component = 'jfast_outbox'"))
    assert schema.upgrade(theirs) == ["outbox in jfast_outbox"]


def test_a_foreign_table_is_refused(postgres_dsn):
    database = Database(postgres_dsn)
    with database.session() as session:
        session.execute(text("CREATE TABLE jfast_outbox (id int)"))
    with pytest.raises(ConfigError, match="is not an outbox"):
        schema.upgrade(database)
    database.dispose()
