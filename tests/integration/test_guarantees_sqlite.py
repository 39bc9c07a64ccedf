"""A SQLite file that is deleted or replaced under a running process: nothing is accepted that nobody will ever see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.errors import SchemaError
from jfast_sync.queues.sql import SqlQueue
from tests.integration.sql_support import make_queue, put
from tests.worker_harness import Bench


def _delete(queue: SqlQueue) -> None:
    assert queue.database.path is not None
    for suffix in ("", "-wal", "-shm"):
        Path(queue.database.path + suffix).unlink(missing_ok=True)


def test_a_file_that_was_deleted_takes_no_jobs(sqlite_queue: SqlQueue) -> None:
    put(sqlite_queue)
    _delete(sqlite_queue)
    with pytest.raises(SchemaError, match="db upgrade"):
        put(sqlite_queue)


def test_a_worker_goes_on_with_the_file_that_took_the_place_of_its_own(sqlite_queue: SqlQueue, sqlite_dsn: str) -> None:
    bench = Bench(sqlite_queue, sqlite_queue.database)
    ran: list[int] = []

    @bench.tasks.task("t")
    def task(payload: dict[str, Any]) -> None:
        ran.append(payload["n"])

    with bench.running():
        put(sqlite_queue, payload={"n": 1})
        bench.when(ready=0, running=0)
        _delete(sqlite_queue)
        web = make_queue(sqlite_dsn)
        put(web, payload={"n": 2})
        bench.when(ready=0, running=0)
        web.close()

    assert ran == [1, 2]


def test_an_unchanged_file_keeps_its_connections(sqlite_queue: SqlQueue) -> None:
    def driver() -> int:
        with sqlite_queue.database.engine.connect() as connection:
            return id(connection.connection.driver_connection)

    assert driver() == driver()
    os.utime(str(sqlite_queue.database.path))
    put(sqlite_queue)
    assert driver() == driver()
