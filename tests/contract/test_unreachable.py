"""A server that is not there is an UnavailableError of every operation: soon, and without a password in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Lease
from jfast_sync.outcome import Done
from jfast_sync.ports import DeadFilter
from tests.contract.backends import PostgresBackend, Server, needs
from tests.contract.steps import a_job, claim, extend, settle

LEASE = Lease(job=a_job(), token="0" * 32, claimed_at=datetime.now(UTC))
OPERATIONS: dict[str, Callable[[Any], object]] = {
    "setup": lambda queue: queue.setup(),
    "enqueue": lambda queue: queue.enqueue([a_job()]),
    "claim": lambda queue: claim(queue),
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
