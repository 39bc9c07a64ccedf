"""When a drain has nothing left to wait for, also where the backend cannot list jobs."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from jfast_sync.job import Job
from jfast_sync.ports import Inspectable, Selection, Stats
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.worker.emptiness import Emptiness

ALL = Selection(worker="w")


class Counts:
    """A queue that can only count."""

    backend = "counts"

    def __init__(self, **counts: Any) -> None:
        self._stats = Stats(**counts)

    def stats(self) -> Stats:
        return self._stats


def never() -> float:
    return 0.0


@pytest.mark.parametrize(
    ("counts", "over"),
    [({}, True), ({"dead": 3}, True), ({"ready": 1}, False), ({"running": 1}, False), ({"delayed": 1}, True)],
)
def test_without_a_listing_only_own_retries_are_waited_for(counts: dict[str, int], over: bool) -> None:
    queue: Any = Counts(**counts)
    assert not isinstance(queue, Inspectable)
    assert Emptiness(queue, ALL, 300.0, never)() is over
    assert not Emptiness(queue, ALL, 300.0, lambda: time.monotonic() + 5)()


@pytest.mark.parametrize(("delay", "over"), [(10, False), (400, True)])
def test_what_is_due_soon_is_waited_for(delay: float, over: bool) -> None:
    queue = MemoryQueue()
    queue.enqueue([Job(task="t", max_attempts=1, delay=timedelta(seconds=delay))])
    assert Emptiness(queue, ALL, 300.0, never)() is over


@pytest.mark.parametrize(
    ("queues", "tasks", "over"),
    [
        ({"a"}, None, False),
        ({"b"}, None, True),
        ({"a", "b"}, None, False),
        (None, {"t"}, False),
        (None, {"u"}, True),
        ({"a"}, {"u"}, True),
    ],
)
def test_others_jobs_are_not_waited_for(queues: set[str] | None, tasks: set[str] | None, over: bool) -> None:
    queue = MemoryQueue()
    queue.enqueue([Job(task="t", max_attempts=1, queue="a")])
    selection = Selection(
        worker="w",
        queues=frozenset(queues) if queues is not None else None,
        tasks=frozenset(tasks) if tasks is not None else None,
    )
    assert Emptiness(queue, selection, 300.0, never)() is over
