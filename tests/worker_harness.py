"""A worker inside the test's process, and what its tests wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jfast_sync.job import Job
from jfast_sync.observers import Observers
from jfast_sync.outcome import Policy
from jfast_sync.ports import Queue, Stats
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.declarations import Declarations
from jfast_sync.tasks.registry import Registry
from jfast_sync.worker import Worker, WorkerOptions
from jfast_sync.worker.child import ChildLauncher
from tests.waiting import eventually

__all__ = ["Bench"]


class Bench:
    """A queue, a registry of its own, and workers over them."""

    def __init__(self, queue: Any = None, database: Database | None = None) -> None:
        self.queue: Any = queue if queue is not None else MemoryQueue()
        self.database = database
        self.tasks = Registry(Declarations())
        self.observers = Observers()
        self.policy = Policy(backoff_base=0.0)
        self.child: ChildLauncher | None = None

    def enqueue(self, task: str, count: int = 1, **fields: Any) -> list[str]:
        fields.setdefault("max_attempts", 3)
        jobs = [Job(task=task, **({"payload": {"n": n}} | fields)) for n in range(count)]
        return list(self.queue.enqueue(jobs))

    def worker(self, *, queue: Queue | None = None, **options: Any) -> Worker:
        defaults: dict[str, Any] = {"threads": 2, "grace": 5.0, "patience": 0.1}
        return Worker(
            queue if queue is not None else self.queue,
            self.tasks,
            self.database,
            None,
            WorkerOptions(**(defaults | options)),
            observers=self.observers,
            policy=self.policy,
            child=self.child,
        )

    @contextmanager
    def running(self, **options: Any) -> Iterator[Worker]:
        """Run a worker in this process's threads for the length of the block."""
        worker = self.worker(**options)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()
            assert worker.join(30)

    def drain(self, **options: Any) -> Worker:
        """Run a worker until the queue is empty."""
        worker = self.worker(drain=True, **options)
        assert worker.run() == 0
        return worker

    def stats(self) -> Stats:
        stats: Stats = self.queue.stats()
        return stats

    def when(self, **expected: int) -> Stats:
        """Wait until the queue's counts are these."""

        def matches(stats: Stats) -> bool:
            return all(getattr(stats, name) == value for name, value in expected.items())

        return eventually(self.stats, until=matches, what=str(expected))
