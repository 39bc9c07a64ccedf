"""A RabbitMQ server for the tests: what every kind of it can do."""

from __future__ import annotations

import logging
import os
import secrets
import time
from abc import ABC, abstractmethod
from itertools import count
from urllib.parse import urlsplit, urlunsplit

import pika
from pika.exceptions import AMQPError

from tests.servers.errors import ServerUnavailable

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs every refused attempt as four errors

#: Milliseconds after which a message that could not be moved on at a restart is moved again; 180 000 unless set.
CONFIRM_TIMEOUT_MS = 5000
#: A quorum queue whose broker is killed within about a second of its declaration can stay without a leader.
SETTLING_SECONDS = 3.0


class RabbitServer(ABC):
    """A running RabbitMQ; `url` leads into the virtual host the tests work in."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names = count(1)
        self._prefix = f"t{os.getpid()}{secrets.token_hex(3)}"

    @abstractmethod
    def start(self) -> None:
        """Start the broker and return when it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it the orderly way."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL, as a crash would."""

    @abstractmethod
    def close(self) -> None:
        """Stop it for good and leave nothing behind."""

    @abstractmethod
    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on it; return what it printed."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether its process lives."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5672

    def restart(self) -> None:
        """Stop the orderly way, then start again with the same data."""
        self.stop()
        self.start()

    def url_by_port(self, port: int) -> str:
        """The URL through a proxy on another loopback port."""
        parts = urlsplit(self.url)
        user, _, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def new_name(self) -> str:
        """A `[plugin.queue] name` nobody has used on this server."""
        return f"{self._prefix}_{next(self._names)}"

    def set_env(self, key: str, value: str) -> None:
        """Set a parameter of the running broker (an Erlang term), until it restarts."""
        self.control("eval", f"application:set_env(rabbit, {key}, {value}).")

    def alarm(self, *, on: bool) -> None:
        """Raise or clear the memory alarm: publishers are held back while it is on."""
        self.control("set_vm_memory_high_watermark", "0.0000001" if on else "0.6")

    def connect(self) -> pika.BlockingConnection:
        """A connection of the test's own."""
        parameters = pika.URLParameters(self.url)
        parameters.socket_timeout = 5
        return pika.BlockingConnection(parameters)

    def accepts_connections(self) -> bool:
        try:
            self.connect().close()
        except (AMQPError, OSError):
            return False
        return True

    def wait_until_ready(self, timeout: float = 90.0) -> None:
        """Return when it accepts connections; raise ServerUnavailable after `timeout` seconds or when it has ended."""
        deadline = time.monotonic() + timeout
        while not self.accepts_connections():
            if not self.running or time.monotonic() > deadline:
                raise ServerUnavailable(f"RabbitMQ did not start: {self.last_words()}")
            time.sleep(0.05)  # between two attempts to connect: there is nothing to wait on before it listens

    def last_words(self) -> str:
        """The end of its log, for error messages."""
        return "no log"
