"""A Redis (or Valkey) server for the tests: what every kind of it can do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.errors import ServerUnavailable


class RedisServer(ABC):
    """A running server; `url` leads to the database the tests work in, and may empty."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def start(self) -> None:
        """Start the server and return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it the orderly way."""

    @abstractmethod
    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""

    @abstractmethod
    def close(self) -> None:
        """Stop it for good and leave nothing of it behind."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether its process lives."""

    def restart(self) -> None:
        """Stop the orderly way, then start on the same port with the same data."""
        self.stop()
        self.start()

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

    def answers(self) -> bool:
        """Whether it serves commands now."""
        try:
            return bool(self.command("PING"))
        except (redis.RedisError, OSError):
            return False

    def wait_until_ready(self, timeout: float = 30.0) -> None:
        """Return when it answers; raise ServerUnavailable after `timeout` seconds or when it has ended."""
        deadline = time.monotonic() + timeout
        while not self.answers():
            if not self.running or time.monotonic() > deadline:
                raise ServerUnavailable(f"Redis did not start: {self.last_words()}")
            time.sleep(0.01)  # between two attempts to connect: there is nothing to wait on before it listens

    def last_words(self) -> str:
        """The end of its log, for error messages."""
        return "no log"


class ExternalRedis(RedisServer):
    """A server somebody else runs, named by JFAST_TEST_REDIS_URL: used, never stopped; its database is emptied."""

    def start(self) -> None:
        if not self.answers():
            raise ServerUnavailable("the Redis that JFAST_TEST_REDIS_URL names does not answer")

    def stop(self) -> None:
        raise NotImplementedError("this server is not ours to stop")

    kill = stop

    def close(self) -> None:
        """Leave it as it was found."""

    @property
    def running(self) -> bool:
        """Somebody else sees to that."""
        return True
