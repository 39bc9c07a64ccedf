"""Reading a project's database from outside, with the plain driver: what the tests believe rather than the library."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

EFFECTS = "CREATE TABLE effects (job_id TEXT NOT NULL, attempts INTEGER NOT NULL, pid INTEGER NOT NULL)"
ONCE = "CREATE TABLE once (job_id TEXT PRIMARY KEY)"
_JOBS = "SELECT id, task, status, attempts, last_error FROM jfast_jobs ORDER BY id"


@dataclass(frozen=True)
class JobRow:
    """One row of the queue's table."""

    id: str
    task: str
    status: str
    attempts: int
    error: str | None


class Store:
    """The database behind `dsn`; every look at it is a connection of its own, so a restarted server is no matter."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.dialect = "sqlite" if dsn.startswith("sqlite") else "postgresql"

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return Path(urlsplit(self.dsn).path.removeprefix("/"))

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection in autocommit mode."""
        opened: Any
        if self.dialect == "sqlite":
            opened = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        else:
            opened = psycopg.connect(self.dsn, autocommit=True, connect_timeout=10)
        with closing(opened):
            yield opened

    def execute(self, statement: str) -> None:
        with self.connection() as connection:
            connection.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            return [tuple(row) for row in connection.execute(statement).fetchall()]

    def jobs(self, status: str | None = None) -> list[JobRow]:
        """The rows of the queue, all or those of one status (pending, running, dead)."""
        found = [JobRow(*row) for row in self.rows(_JOBS)]
        return [row for row in found if status in (None, row.status)]

    def job(self, job_id: str) -> JobRow | None:
        """One job's row; None when it is gone, which is what success looks like."""
        return next((row for row in self.jobs() if row.id == job_id), None)

    def unfinished(self) -> int:
        """How many jobs are neither done nor dead."""
        return int(self.rows("SELECT count(*) FROM jfast_jobs WHERE status IN ('pending', 'running')")[0][0])

    def effects(self) -> Counter[str]:
        """How often each job's effect was committed."""
        return Counter(row[0] for row in self.rows("SELECT job_id FROM effects"))
