"""The few steps every test of the suite is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from jfast_sync.job import Job, Lease
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Bury, Done, Outcome, Release, Retry, Settlement
from jfast_sync.ports import Held, Queue, Selection, Settled

#: One of every kind of outcome, and every shade of a retry.
OUTCOMES: Final[dict[str, Outcome]] = {
    "done": Done(),
    "retry": Retry(5.0, error="ValueError: no"),
    "snooze": Retry(5.0, refund=True, snooze=True),
    "bury": Bury("ValueError: no"),
    "release": Release(),
}


def a_job(task: str = "t", **fields: Any) -> Job:
    """A job as a client hands it to a queue: payload encoded, max_attempts set."""
    return Job(task=task, **{"max_attempts": 3, **fields})


def put(queue: Queue, /, **fields: Any) -> Job:
    """Enqueue one job; return it."""
    job = a_job(**fields)
    assert queue.enqueue([job]) == [job.id]
    return job


def put_many(queue: Queue, count: int, /, **fields: Any) -> list[Job]:
    """Enqueue `count` jobs in one batch; return them."""
    jobs = [a_job(**fields) for _ in range(count)]
    assert queue.enqueue(jobs) == [job.id for job in jobs]
    return jobs


def claim(
    queue: Queue,
    limit: int = 100,
    wait: float = 0.0,
    *,
    worker: str = "w",
    queues: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
) -> list[Lease]:
    """Claim, spelled short."""
    selection = Selection(
        worker=worker,
        queues=None if queues is None else frozenset(queues),
        tasks=None if tasks is None else frozenset(tasks),
    )
    return queue.claim(limit, wait, selection)


def take(queue: Queue, count: int = 1, **options: Any) -> list[Lease]:
    """Claim until `count` leases are held; fail when they do not come within a deadline."""
    deadline = Deadline(10.0)
    leases: list[Lease] = []
    while len(leases) < count:
        leases += claim(queue, count - len(leases), deadline.remaining(), **options)
        assert len(leases) == count or not deadline.passed, f"only {len(leases)} of {count} jobs could be claimed"
    return leases


def take_one(queue: Queue, /, **options: Any) -> Lease:
    """Claim the one next job."""
    return take(queue, 1, **options)[0]


def settle(queue: Queue, lease: Lease, outcome: Outcome) -> Settled:
    """Settle one lease."""
    [answer] = queue.settle([Settlement(lease, outcome)])
    return answer


def extend(queue: Queue, lease: Lease) -> Held:
    """Renew one lease."""
    [answer] = queue.extend([lease])
    return answer


def bury(queue: Queue, /, error: str = "ValueError: no", **fields: Any) -> Job:
    """Enqueue one job, claim it and make it a dead letter."""
    job = put(queue, **fields)
    lease = take_one(queue)
    assert lease.job.id == job.id
    assert settle(queue, lease, Bury(error, "Traceback: ...")) is Settled.APPLIED
    return job


def ids(found: Iterable[Any]) -> list[str]:
    """The job ids of leases, dead letters or rows, in order."""
    return [each.job.id for each in found]


@contextmanager
def meanwhile(function: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Run `function` in a thread; the block starts when the thread has; its end waits for the function's."""
    started = threading.Event()

    def run() -> Any:
        started.set()
        return function()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        assert started.wait(10)
        yield future


def all_at_once(functions: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run every function in a thread of its own, released together; return their results in order."""
    todo = list(functions)
    gate = threading.Barrier(len(todo))

    def through(function: Callable[[], Any]) -> Any:
        gate.wait(30)
        return function()

    with ThreadPoolExecutor(len(todo)) as pool:
        return list(pool.map(through, todo))


def seconds(count: float) -> timedelta:
    """A timedelta, spelled short."""
    return timedelta(seconds=count)
