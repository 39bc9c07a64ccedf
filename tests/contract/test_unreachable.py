"""A server that is away is an UnavailableError of every operation, and costs nobody the job that is being run."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Lease
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Done
from jfast_sync.ports import DeadFilter, Held, Settled
from tests.contract.backends import LeaseClock, PostgresBackend, Server, needs
from tests.contract.steps import a_job, claim, extend, ids, put_many, settle, take
from tests.servers import Proxy
from tests.waiting import eventually

LEASE = Lease(job=a_job(), token="0" * 32, claimed_at=datetime.now(UTC))
OPERATIONS: dict[str, Callable[[Any], object]] = {
    "setup": lambda queue: queue.setup(),
    "enqueue": lambda queue: queue.enqueue([a_job()]),
    "claim": claim,
    "settle": lambda queue: settle(queue, LEASE, Done()),
    "extend": lambda queue: extend(queue, LEASE),
    "recover": lambda queue: queue.recover(),
    "record": lambda queue: queue.record({"a": 1}, {}),
    "stats": lambda queue: queue.stats(),
    "dead": lambda queue: queue.dead(DeadFilter(), limit=1),
    "find_dead": lambda queue: queue.find_dead("x"),
    "revive": lambda queue: queue.revive(["x"]),
    "revive_where": lambda queue: queue.revive_where(DeadFilter()),
    "discard": lambda queue: queue.discard(["x"]),
}


@needs(Server)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_operation_says_so(backend: PostgresBackend, operation: Callable[[Any], object]) -> None:
    queue = backend.open_unreachable()
    start = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        operation(queue)
    assert time.monotonic() - start < 10
    assert "s3cret" not in str(caught.value)
    queue.close()


@needs(Server, LeaseClock)
def test_after_an_outage_the_holders_come_back_first(backend: PostgresBackend, proxy: Callable[[int], Proxy]) -> None:
    lease_time = 2.0
    network = proxy(backend.port)
    backend.behind(network)
    holder, other = (backend.open(visibility_timeout=lease_time) for _ in range(2))
    put_many(holder, 2)
    held, orphan = take(holder, 2)
    network.cut()
    network.refuse()
    outage = Deadline(lease_time / 2)
    with pytest.raises(UnavailableError):
        holder.extend([held])
    while not outage.passed:
        with pytest.raises(UnavailableError):
            other.recover()
    backend.pass_time(lease_time + 1)
    network.restore()

    assert eventually(lambda: _unless_away(other.recover), until=lambda found: found is not None) == 0
    back = Deadline(lease_time / 2)
    assert (
        eventually(lambda: _unless_away(lambda: extend(holder, held)), until=lambda found: found is not None)
        is Held.YES
    )
    while not back.passed:
        assert other.recover() == 0
    assert eventually(lambda: extend(holder, held) is Held.YES and other.recover() == 1, what="the orphan's recovery")
    assert ids(take(other, 1)) == [orphan.job.id]
    assert settle(holder, held, Done()) is Settled.APPLIED


def _unless_away(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except UnavailableError:
        return None
