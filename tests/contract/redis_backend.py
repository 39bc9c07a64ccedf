"""The harness class of the Redis queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from jfast_sync.job import Job
from jfast_sync.ports import DeadLetters, Inspectable, Queue
from tests.contract import redis_time
from tests.contract.backends import (
    Backend,
    CountsAll,
    DistinctIds,
    FineOrder,
    LeaseClock,
    MemoryBackend,
    Server,
    unused_port,
)

if TYPE_CHECKING:
    from tests.servers import Proxy


class RedisBackend(Backend):
    """The server's clock decides, so time passes by moving every stored instant into the past."""

    name = "redis"
    url = "redis_url"
    capabilities = frozenset({DeadLetters, Inspectable, DistinctIds, Server, LeaseClock, FineOrder, CountsAll})
    undecodable: ClassVar[Mapping[str, bytes]] = {
        **MemoryBackend.undecodable,
        "another's": b'{"id": "other", "task": "t"}',
    }

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._direct = url

    def _open(self, patient: bool, options: dict[str, Any]) -> Queue:
        from jfast_sync.queues.redis import RedisQueue

        queue = RedisQueue(self.dsn, **options)
        if patient:
            queue._waiting.longest = 60.0
        return queue

    def now(self) -> datetime:
        return datetime.now(UTC)

    def pass_time(self, seconds: float) -> None:
        redis_time.move(self._direct, seconds)

    def put_undecodable(self, kind: str | None = None) -> None:
        job = Job(task="broken", max_attempts=3)
        self.open().enqueue([job])
        redis_time.replace_body(self._direct, job.id, self._body(kind))

    def behind(self, proxy: Proxy) -> None:
        """Have every queue opened from now on reach the server through `proxy`."""
        self.dsn = proxy.dsn(self._direct)

    def open_unreachable(self) -> Queue:
        """Open a queue whose server is not there."""
        there, self.dsn = self.dsn, f"redis://jfast:s3cret@127.0.0.1:{unused_port()}/0"
        try:
            queue: Queue = self.open_bare()
            return queue
        finally:
            self.dsn = there

    @property
    def port(self) -> int:
        """Where the server listens."""
        return urlsplit(self._direct).port or 6379
