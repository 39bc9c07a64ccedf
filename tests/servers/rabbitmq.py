"""A RabbitMQ server for the tests: what every kind of it can do."""

from __future__ import annotations

import logging
import os
import secrets
from abc import abstractmethod
from itertools import count
from urllib.parse import urlsplit, urlunsplit

import pika
from pika.exceptions import AMQPError

from tests.servers.server import Server

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs every refused attempt as four errors

#: Milliseconds after which a message that could not be moved on at a restart is moved again; 180 000 unless set.
CONFIRM_TIMEOUT_MS = 5000
#: A quorum queue whose broker is killed within about a second of its declaration can stay without a leader.
SETTLING_SECONDS = 3.0


class RabbitServer(Server):
    """A running RabbitMQ; `url` leads into the virtual host the tests work in."""

    title = "RabbitMQ"

    def __init__(self, url: str) -> None:
        self.url = url
        self._names = count(1)
        self._prefix = f"t{os.getpid()}{secrets.token_hex(3)}"

    @abstractmethod
    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on it; return what it printed."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5672

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
