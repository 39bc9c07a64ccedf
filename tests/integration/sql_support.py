"""What the tests of the SQL queue share: a database of either dialect, and short ways to say what they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from jfast_sync.job import Job, Lease
from jfast_sync.ports import Selection
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql.engine import Database

__all__ = ["ANY", "claim", "make_queue", "python", "start_python"]

ANY: Final = Selection(worker="w")


def make_queue(dsn: str, **options: Any) -> SqlQueue:
    """A queue on an engine of its own, set up."""
    queue = SqlQueue(Database(dsn), **options)
    queue.setup()
    return queue


def claim(queue: SqlQueue, limit: int = 1, wait: float = 0.0) -> list[Lease]:
    return queue.claim(limit, wait, ANY)


def put(queue: SqlQueue, count: int = 1, **fields: Any) -> list[str]:
    return queue.enqueue([Job(task="t", **fields) for _ in range(count)])


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Run code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(code: str, *arguments: str) -> str:
    """Run code in a process of its own to its end, and return what it printed."""
    process = start_python(code, *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def queues_on(dsn: str, **options: Any) -> Iterator[SqlQueue]:
    queue = make_queue(dsn, **options)
    yield queue
    queue.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, on each dialect in turn."""
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def queue(dsn: str) -> Iterator[SqlQueue]:
    """A queue on an empty database of each dialect."""
    yield from queues_on(dsn)


@pytest.fixture
def postgres_queue(postgres_dsn: str) -> Iterator[SqlQueue]:
    """A queue on an empty PostgreSQL database."""
    yield from queues_on(postgres_dsn)


@pytest.fixture
def sqlite_queue(sqlite_dsn: str) -> Iterator[SqlQueue]:
    """A queue on a new SQLite file."""
    yield from queues_on(sqlite_dsn)
