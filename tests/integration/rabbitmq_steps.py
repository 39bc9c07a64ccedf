"""What the tests of RabbitMQ are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jfast_sync.job import Job, Lease
from jfast_sync.outcome import Done, Outcome, Settlement
from jfast_sync.ports import Selection, Settled
from jfast_sync.queues.rabbitmq.cascade import DEFAULT, Cascade
from jfast_sync.queues.rabbitmq.connection import Server
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import eventually

EVERYTHING = Selection(worker="w")
#: Delays up to 6 s, declared in a tenth of the time.
SMALL = Cascade(levels=6, tick_ms=100)


@contextmanager
def opened(
    server: RabbitServer, name: str | None = None, *, url: str | None = None, cascade: Cascade = SMALL, **options: Any
) -> Iterator[RabbitQueue]:
    """A queue that is set up, and closed in the end; it does not look for policies."""
    queue = RabbitQueue(Server(url=url or server.url), name=name or server.new_name(), cascade=cascade, **options)
    queue.policies.try_at = math.inf
    try:
        queue.setup()
        yield queue
    finally:
        queue.close()


def a_job(**fields: Any) -> Job:
    return Job(**{"task": "t", "max_attempts": 3, **fields})


def take(queue: RabbitQueue, count: int, timeout: float = 20.0) -> list[Lease]:
    """Claim until so many leases are held."""
    leases: list[Lease] = []

    def claimed() -> int:
        leases.extend(queue.claim(count - len(leases), 0.5, EVERYTHING))
        return len(leases)

    eventually(claimed, timeout, until=lambda found: found >= count, what=f"{count} jobs")
    return leases


def take_again(queue: RabbitQueue, count: int, timeout: float = 20.0) -> list[Lease]:
    """Claim until so many leases are held, through connections that are made again meanwhile."""
    leases: list[Lease] = []

    def claimed() -> int:
        leases.extend(unless_away(lambda: queue.claim(count - len(leases), 0.5, EVERYTHING)) or ())
        return len(leases)

    eventually(claimed, timeout, until=lambda found: found >= count, what=f"{count} jobs")
    return leases


def settle(queue: RabbitQueue, *leases: Lease, outcome: Outcome = Done()) -> list[Settled]:  # noqa: B008 - frozen
    return queue.settle([Settlement(lease, outcome) for lease in leases])


def unless_away(ask: Callable[[], Any]) -> Any:
    """The answer; None while the broker is away."""
    from jfast_sync.errors import UnavailableError

    try:
        return ask()
    except UnavailableError:
        return None


__all__ = ["DEFAULT", "EVERYTHING", "SMALL", "a_job", "opened", "settle", "take", "take_again", "unless_away"]
