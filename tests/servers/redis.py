"""A Redis (or Valkey) server for the tests: what every kind of it can do."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.errors import ServerUnavailable
from tests.servers.server import Server

URL_VARIABLE = "JFAST_TEST_REDIS_URL"


class RedisServer(Server):
    """A running server; `url` leads to the database the tests work in, and may empty."""

    title = "Redis"

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def port(self) -> int:
        """The TCP port it listens on; the same after every restart."""
        return urlsplit(self.url).port or 6379

    def client(self) -> Any:
        """A client of the tests' own, without retries; to be closed (`with`)."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=30, protocol=2)

    def command(self, *words: Any) -> Any:
        """Run one command."""
        with self.client() as client:
            return client.execute_command(*words)

    def configure(self, **settings: str) -> None:
        """Change settings at run time; `_` stands for `-`."""
        for name, value in settings.items():
            self.command("CONFIG", "SET", name.replace("_", "-"), value)

    def empty(self) -> None:
        """Remove everything stored in the tests' database."""
        self.command("FLUSHDB")

    def accepts_connections(self) -> bool:
        """Whether it serves commands now."""
        try:
            return bool(self.command("PING"))
        except (redis.RedisError, OSError):
            return False


class ExternalRedis(RedisServer):
    """A server somebody else runs, named by JFAST_TEST_REDIS_URL: used, never stopped; its database is emptied."""

    def start(self) -> None:
        if not self.accepts_connections():
            raise ServerUnavailable(f"the Redis that {URL_VARIABLE} names does not answer")

    def stop(self) -> None:
        raise NotImplementedError("this server is not ours to stop")

    kill = stop

    def close(self) -> None:
        """Leave it as it was found."""

    @property
    def running(self) -> bool:
        """Somebody else sees to that."""
        return True
