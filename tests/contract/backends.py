"""One harness per backend: what the suite must do to a store that the port itself does not offer.

A new backend is one class here: it opens queues on one store (a second one acts as another process), moves time, and
declares in `capabilities` what its tests are. The suite never asks which backend it runs on.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import text

from jfast_sync.job import Job
from jfast_sync.ports import DeadLetters, Inspectable, Queue, SharesTransaction
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.queues.memory_store import MemoryStore
from tests.clock import FakeClock

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.sql.engine import Database
    from tests.servers import Proxy

VISIBILITY: Final = 60.0
#: Legal JSON, and legal jsonb, that Python refuses to read: see sys.set_int_max_str_digits().
TOO_MANY_DIGITS: Final = b'{"a": 1' + b"0" * 5000 + b"}"


class DistinctIds:
    """Capability: a job whose id is already stored is not stored again."""


class Server:
    """Capability: the store is a server, which can be away."""


class SelectsTasks:
    """Capability: a claim can be limited to some tasks."""


class LeaseClock:
    """Capability: a lease runs out by the clock, and somebody else recovers it."""


class FineOrder:
    """Capability: jobs come by exact priority, and within one by due time."""


class CountsAll:
    """Capability: the store knows what runs elsewhere, the age of what waits, and the counters of all processes."""


class RowLocks:
    """Capability: a foreign transaction can hold one job's row while the others go on."""


def needs(*capabilities: type) -> pytest.MarkDecorator:
    """Run a test on the backends that declare all of these only."""
    return pytest.mark.needs.with_args(*capabilities)  # called directly, the mark would decorate a lone class


def unused_port() -> int:
    """A loopback port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Backend(ABC):
    """A store, and the queues a test has opened on it; `close` closes them all."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[type]]
    #: The fixtures that give the URL of an empty store, and of one that was never set up where that is another;
    #: None where the harness is made without a URL.
    url: ClassVar[str | None] = None
    bare_url: ClassVar[str | None] = None
    #: Ways in which a stored job can be undecodable, and what of each the dead letter's `raw` must still hold.
    undecodable: ClassVar[Mapping[str, bytes]]

    def __init__(self, url: str = "") -> None:
        self.dsn = url
        self._queues: list[Queue] = []

    def open(self, *, patient: bool = False, **options: Any) -> Any:
        """Open a queue on the store, ready to use; a second one behaves like another process.

        `patient`: its fallback polling is slower than any test waits, so what wakes it is a real wake-up.
        """
        queue = self.open_bare(patient=patient, **options)
        queue.setup()
        return queue

    def open_bare(self, *, patient: bool = False, **options: Any) -> Any:
        """Open a queue without its setup."""
        queue = self._open(patient, {"visibility_timeout": VISIBILITY, **options})
        self._queues.append(queue)
        return queue

    @abstractmethod
    def _open(self, patient: bool, options: dict[str, Any]) -> Queue: ...

    @abstractmethod
    def now(self) -> datetime:
        """The store's present instant, to within a second or two."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Let this much time pass for everything stored, without waiting for it."""

    @abstractmethod
    def put_undecodable(self, kind: str | None = None) -> None:
        """Store a due job that cannot be decoded, in one of the ways of `undecodable`; None takes the first."""

    def _body(self, kind: str | None) -> bytes:
        return self.undecodable[kind] if kind is not None else next(iter(self.undecodable.values()))

    def close(self) -> None:
        """Close every queue."""
        for queue in self._queues:
            queue.close()


class MemoryBackend(Backend):
    name = "memory"
    capabilities = frozenset({DeadLetters, Inspectable, DistinctIds, SelectsTasks, LeaseClock, FineOrder, CountsAll})
    undecodable: ClassVar[Mapping[str, bytes]] = {
        "not JSON": b'{"a":',
        "not an object": b"[1, 2]",
        "too many digits": TOO_MANY_DIGITS,
        "too deep": b"[" * 100_000,
        "not text": b'{"id": "x\xff"}',
        "no task": b'{"id": "x"}',
    }

    def __init__(self, url: str = "") -> None:
        super().__init__(url)
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.clock.watch(self._tell)

    def _tell(self) -> None:
        with self.store.lock:
            self.store.ring()

    def _open(self, patient: bool, options: dict[str, Any]) -> Queue:
        queue = MemoryQueue(clock=self.clock, store=self.store, **options)
        if patient:
            queue._look_again = 60.0
        return queue

    def now(self) -> datetime:
        return self.clock.now()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def put_undecodable(self, kind: str | None = None) -> None:
        job = Job(task="broken", max_attempts=3)
        self.open().enqueue([job])
        self.store.rows[job.id].wire = self._body(kind)


class SqlBackend(Backend):
    """A queue in a database; every queue opened has an engine of its own, as a process would."""

    capabilities = frozenset(
        {DeadLetters, Inspectable, DistinctIds, SelectsTasks, SharesTransaction, LeaseClock, FineOrder, CountsAll}
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._databases: list[Database] = []
        self._application: Database | None = None

    def _open(self, patient: bool, options: dict[str, Any]) -> Queue:
        from jfast_sync.queues.sql import SqlQueue

        if patient:
            options["poll_interval"] = 60.0
        return SqlQueue(self._database(), **self._extra(), **options)

    def _extra(self) -> dict[str, Any]:
        return {}

    def _database(self) -> Database:
        from jfast_sync.sql.engine import Database

        database = Database(self.dsn)
        self._databases.append(database)
        return database

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session of the application's on the queue's database: commits on normal exit, rolls back on exception."""
        if self._application is None:
            self._application = self._database()
        with self._application.session() as session:
            yield session

    #: What makes bytes a payload, as SQL.
    _payload: ClassVar[str] = "CAST(convert_from(:payload, 'UTF8') AS jsonb)"

    def put_undecodable(self, kind: str | None = None) -> None:
        job = Job(task="broken", max_attempts=3)
        self.open().enqueue([job])
        with self.session() as session:
            session.execute(
                text(f"UPDATE jfast_jobs SET payload = {self._payload} WHERE id = :id"),
                {"payload": self._body(kind), "id": job.id},
            )

    def close(self) -> None:
        super().close()
        for database in self._databases:
            database.dispose()


class SqliteBackend(SqlBackend):
    name = "sqlite"
    url = "sqlite_dsn"
    undecodable: ClassVar[Mapping[str, bytes]] = {
        "not JSON": b'{"a":',
        "not an object": b"[1, 2]",
        "too many digits": TOO_MANY_DIGITS,
        "too deep": b"[" * 100_000,
        "not text": b'{"x": "\xff"}',
    }
    _payload = "CAST(:payload AS text)"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.clock = FakeClock()

    def _extra(self) -> dict[str, Any]:
        return {"clock": self.clock}

    def now(self) -> datetime:
        return self.clock.now()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)


class PostgresBackend(SqlBackend):
    """The database's clock decides, so time passes by moving every stored instant into the past."""

    name = "postgresql"
    url = "emptied_postgres_dsn"
    bare_url = "postgres_dsn"
    capabilities = SqlBackend.capabilities | {RowLocks, Server}
    undecodable: ClassVar[Mapping[str, bytes]] = {
        "too many digits": TOO_MANY_DIGITS,
        "not an object": b"[1, 2]",
        "a bare text": b'"x"',
        "due before all time": b"{}",
        "created after all time": b"{}",
    }
    _instants: ClassVar[Mapping[str, str]] = {
        "due before all time": "available_at = '-infinity'",
        "created after all time": "created_at = 'infinity'",
    }

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._direct = url

    def now(self) -> datetime:
        return datetime.now(UTC)

    def pass_time(self, seconds: float) -> None:
        with psycopg.connect(self._direct, autocommit=True) as connection:
            found = connection.execute(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_name = 'jfast_jobs' AND data_type = 'timestamp with time zone'"
            ).fetchall()
            columns = ", ".join(f"{name} = {name} - make_interval(secs => {float(seconds)})" for (name,) in found)
            connection.execute(f"UPDATE jfast_jobs SET {columns}")

    def put_undecodable(self, kind: str | None = None) -> None:
        if kind is None or kind not in self._instants:
            super().put_undecodable(kind)
            return
        job = Job(task="broken", max_attempts=3)
        self.open().enqueue([job])
        with self.session() as session:
            session.execute(text(f"UPDATE jfast_jobs SET {self._instants[kind]} WHERE id = :id"), {"id": job.id})

    def behind(self, proxy: Proxy) -> None:
        """Have every queue opened from now on reach the server through `proxy`."""
        self.dsn = proxy.dsn(self._direct)

    @property
    def port(self) -> int:
        """Where the server listens."""
        return urlsplit(self._direct).port or 5432

    def open_unreachable(self) -> Queue:
        """Open a queue whose server is not there."""
        there, self.dsn = self.dsn, f"postgresql://jfast:s3cret@127.0.0.1:{unused_port()}/jfast"
        try:
            queue: Queue = self.open_bare()
            return queue
        finally:
            self.dsn = there

    @contextmanager
    def row_locked(self, job_id: str, strength: LiteralString = "UPDATE") -> Iterator[None]:
        """Hold the job's row in a transaction that is nobody's of the library."""
        statement = f"SELECT id FROM jfast_jobs WHERE id = %s FOR {strength}"
        with psycopg.connect(self._direct) as connection:
            locked = connection.execute(statement, (job_id,)).fetchall()
            assert locked == [(job_id,)]
            yield
            connection.rollback()


BACKENDS: Final[tuple[type[Backend], ...]] = (MemoryBackend, SqliteBackend, PostgresBackend)
