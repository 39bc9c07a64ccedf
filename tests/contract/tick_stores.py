"""One harness per tick store: opens stores on one place (a second one acts as another process), and moves time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from jfast_sync.ports import TickStore
from jfast_sync.ticks.memory import MemoryTickStore
from tests.clock import FakeClock

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database


class Ticks(ABC):
    """A place where ticks are claimed, and the stores a test has opened on it."""

    name: ClassVar[str]
    #: The fixture that gives the URL of an empty place.
    url: ClassVar[str | None] = None
    #: Whether a claim is part of a session's transaction.
    transactional: ClassVar[bool] = False
    #: Whether several processes can write at the same time.
    many_writers: ClassVar[bool] = False

    def __init__(self, url: str = "") -> None:
        self.dsn = url

    @abstractmethod
    def open(self) -> TickStore:
        """Open the place as another process would."""

    @abstractmethod
    def now(self) -> datetime:
        """The store's present instant, to within a second or two."""

    @abstractmethod
    def close(self) -> None:
        """Close what was opened."""


class MemoryTicks(Ticks):
    """One process by its nature, so that every opening is the same store."""

    name = "memory"

    def __init__(self, url: str = "") -> None:
        super().__init__(url)
        self.clock = FakeClock()
        self._store = MemoryTickStore(self.clock)

    def open(self) -> TickStore:
        return self._store

    def now(self) -> datetime:
        return self.clock.now()

    def close(self) -> None:
        self._store.close()


class SqlTicks(Ticks):
    transactional = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.databases: list[Database] = []

    def database(self) -> Database:
        from jfast_sync.sql import schema
        from jfast_sync.sql.engine import Database

        database = Database(self.dsn)
        schema.upgrade(database)
        self.databases.append(database)
        return database

    def open(self) -> TickStore:
        from jfast_sync.ticks.sql import SqlTickStore

        return SqlTickStore(self.database())

    def now(self) -> datetime:
        return datetime.now(UTC)

    def close(self) -> None:
        for database in self.databases:
            database.dispose()


class SqliteTicks(SqlTicks):
    name = "sqlite"
    url = "sqlite_dsn"


class PostgresTicks(SqlTicks):
    name = "postgresql"
    url = "emptied_postgres_dsn"
    many_writers = True


class RedisTicks(Ticks):
    name = "redis"
    url = "redis_url"
    many_writers = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._stores: list[TickStore] = []

    def open(self) -> TickStore:
        from redis import Redis

        from jfast_sync.queues.redis.connect import pool
        from jfast_sync.ticks.redis import RedisTickStore

        client = Redis(connection_pool=pool(self.dsn, max_connections=8, tls={}))
        store = RedisTickStore(client, key_prefix="app:")
        self._stores.append(store)
        return store

    def now(self) -> datetime:
        return datetime.now(UTC)

    def close(self) -> None:
        for store in self._stores:
            store.close()


TICK_STORES: tuple[type[Ticks], ...] = (MemoryTicks, SqliteTicks, PostgresTicks, RedisTicks)
