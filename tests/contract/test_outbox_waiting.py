"""Jobs that wait in the outbox for their time can be seen, counted and cancelled as if they were in the queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jfast_sync.ports import Cancelled, Inspectable
from tests.contract.steps import seconds
from tests.contract.test_outbox import Outbox, outbox

__all__ = ["outbox"]


@pytest.fixture
def delayed(outbox: Outbox) -> Outbox:
    with outbox.session() as session:
        outbox.enqueue(session, id="later", delay=seconds(1000), payload={"n": 1}, queue="mail", tenant_id="acme")
        outbox.enqueue(session, id="other", delay=seconds(2000))
    return outbox


def test_they_are_counted(delayed: Outbox) -> None:
    assert delayed.jf.queue.stats().delayed == 2
    delayed.pass_time(1010)
    assert delayed.brought(1) == ["later"]
    assert delayed.jf.queue.stats().delayed == 1


def test_they_are_listed_and_found(delayed: Outbox) -> None:
    if not isinstance(delayed.queue, Inspectable):
        assert delayed.jf.queue.stats().delayed == 2
        return
    inspect = delayed.jf.queue.inspect

    assert [(row.job.id, row.state) for row in inspect.jobs()] == [("later", "delayed"), ("other", "delayed")]
    assert [row.job.id for row in inspect.jobs(state="delayed", queue="mail", tenant_id="acme", task="t")] == ["later"]
    assert [row.job.id for row in inspect.jobs(limit=1)] == ["later"]
    assert inspect.jobs(state="ready") == inspect.jobs(tenant_id="nobody") == inspect.jobs(queue="none") == []
    found = inspect.find("later")
    assert found is not None
    assert (found.state, found.job.payload, found.job.queue) == ("delayed", {"n": 1}, "mail")
    assert found.job.available_at is not None
    assert inspect.find("nobody") is None


def test_they_can_be_cancelled(delayed: Outbox) -> None:
    if not isinstance(delayed.queue, Inspectable):
        assert delayed.jf.queue.stats().delayed == 2
        return
    inspect = delayed.jf.queue.inspect

    assert inspect.cancel("later") is Cancelled.REMOVED
    assert inspect.cancel("later") is Cancelled.UNKNOWN
    delayed.pass_time(3000)
    assert delayed.brought(1) == ["other"]


def test_an_instant_stays_that_instant(outbox: Outbox) -> None:
    at = datetime.now(UTC) + timedelta(days=2)
    with outbox.session() as session:
        outbox.enqueue(session, id="later", available_at=at)
    if isinstance(outbox.queue, Inspectable):
        found = outbox.jf.queue.inspect.find("later")
        assert found is not None and found.job.available_at == at
    assert outbox.jf.queue.stats().delayed == 1
