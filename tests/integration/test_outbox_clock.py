"""SQLite's rows go by this machine's clock, which may be set back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from jfast_sync.job import Job
from jfast_sync.tasks.registry import isolated
from tests.clock import FakeClock
from tests.integration.outbox_support import opened


@pytest.fixture
def jf(sqlite_dsn):
    with isolated(), opened(sqlite_dsn) as (jf, _):
        jf.messages._clock = FakeClock()
        yield jf


def leased(jf):
    return [message.id for message in jf.messages.lease(10, 60.0).messages]


def test_what_was_written_before_the_clock_was_set_back_is_sent(jf):
    with jf.session() as session:
        jf.outbox.enqueue(session, Job(task="t", id="leased"))
    assert leased(jf) == ["leased"]
    with jf.session() as session:
        jf.outbox.enqueue(session, Job(task="t", id="written"))
        jf.outbox.enqueue(session, Job(task="t", id="delayed", delay=timedelta(seconds=30)))
    jf.messages.sweep()
    jf.messages._clock.advance(-3600)
    assert leased(jf) == []

    jf.messages.sweep()

    assert leased(jf) == ["leased", "written"]
    with jf.session() as session:
        due = session.execute(text("SELECT available_at = due_at FROM jfast_outbox WHERE id = 'delayed'")).scalar()
    assert due == 1


def test_a_steady_clock_ends_no_lease(jf):
    with jf.session() as session:
        jf.outbox.enqueue(session, Job(task="t", id="leased"))
    assert leased(jf) == ["leased"]
    jf.messages.sweep()
    jf.messages._clock.advance(5)
    jf.messages.sweep()

    assert leased(jf) == []
