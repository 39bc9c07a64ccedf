"""Publishing in a transaction: what is refused leaves nothing, and ids of jobs and events do not collide."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.errors import PayloadError, UnsupportedError
from jfast_sync.events import Event, subscribe
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.registry import isolated
from tests.integration.outbox_support import opened, relay_of


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request):
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def opened_app(dsn):
    with isolated(), opened(dsn, bus=RecordingBus()) as (jf, queue):

        @subscribe("order.placed", name="mail.confirm")
        def confirm(event: Event) -> None: ...

        yield jf, queue


@pytest.fixture
def jf(opened_app):
    return opened_app[0]


@pytest.fixture
def queue(opened_app):
    return opened_app[1]


def relay_all(jf):
    relay = relay_of(jf)
    while relay.run_once():
        pass


def test_an_event_that_was_refused_can_be_published_again_in_the_same_transaction(jf, queue):
    # The data fits, the subscriber's job that carries it does not.
    fits = jf.config.queue.max_payload_bytes - 100
    with jf.session() as session:
        with pytest.raises(PayloadError):
            jf.outbox.publish(session, "orders", Event(type="order.placed", id="e-1", data={"x": "a" * fits}))
        assert session.execute(text("SELECT count(*) FROM jfast_inbox")).scalar() == 0
        jf.outbox.publish(session, "orders", Event(type="order.placed", id="e-1", data={"x": "shortened"}))
    relay_all(jf)

    assert len(queue.given) == 1
    assert [sent.event.id for sent in jf.bus.sent] == ["e-1"]


def test_a_session_elsewhere_is_refused_before_anything_is_claimed(jf, tmp_path):
    elsewhere = Database(f"sqlite:///{tmp_path}/other.db")
    with elsewhere.session() as session:
        columns = "consumer text, message_id text, processed_at integer, UNIQUE (consumer, message_id)"
        session.execute(text(f"CREATE TABLE jfast_inbox ({columns})"))
        with pytest.raises(UnsupportedError, match="another database"):
            jf.outbox.publish(session, "orders", Event(type="order.placed"))
        assert session.execute(text("SELECT count(*) FROM jfast_inbox")).scalar() == 0
    elsewhere.dispose()
