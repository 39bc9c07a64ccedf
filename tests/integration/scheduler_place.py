"""A database with queues, tick stores and schedulers on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from jfast_sync.job import Job
from jfast_sync.ports import Queue, TickStore
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.scheduler import Scheduler
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.declarations import isolated
from jfast_sync.tasks.registry import Registry
from jfast_sync.ticks.sql import SqlTickStore


class Place:
    """A database, and queues and stores on it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._queues: list[SqlQueue] = []
        self.queue = self.new_queue()
        self.store = SqlTickStore(self.queue.database)
        with isolated():
            self.tasks = Registry()
        self.tasks.task("report")(lambda: None)

    def new_queue(self, dsn: str | None = None) -> SqlQueue:
        queue = SqlQueue(Database(dsn or self.dsn), listen=False)
        queue.setup()
        self._queues.append(queue)
        return queue

    def scheduler(self, store: TickStore | None = None, queue: Queue | None = None) -> Scheduler:
        prepare = partial(replace, max_attempts=3)
        return Scheduler(store or self.store, queue or self.queue, self.tasks, prepare=prepare)

    def jobs(self) -> list[Job]:
        return [row.job for row in self.queue.jobs(limit=9999)]

    def close(self) -> None:
        for queue in self._queues:
            queue.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))
    yield made
    made.close()


@pytest.fixture
def on_postgres(postgres_dsn: str) -> Iterator[Place]:
    made = Place(postgres_dsn)
    yield made
    made.close()
