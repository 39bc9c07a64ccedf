"""What every server of the tests can do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar

from tests.servers.errors import ServerUnavailable


class Server(ABC):
    """A server that can be started, stopped and killed, and keeps its address and its data meanwhile."""

    title: ClassVar[str]

    @abstractmethod
    def start(self) -> None:
        """Start it and return when it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it the orderly way."""

    @abstractmethod
    def kill(self) -> None:
        """End every process of it with SIGKILL, as a crash would."""

    @abstractmethod
    def close(self) -> None:
        """Stop it for good and leave nothing of it behind."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether its process lives."""

    @abstractmethod
    def accepts_connections(self) -> bool:
        """Whether it serves now."""

    def restart(self) -> None:
        """Stop the orderly way, then start on the same port with the same data."""
        self.stop()
        self.start()

    def wait_until_ready(self, timeout: float = 90.0) -> None:
        """Return when it accepts connections; raise ServerUnavailable after `timeout` seconds or when it has ended."""
        deadline = time.monotonic() + timeout
        while not self.accepts_connections():
            if not self.running or time.monotonic() > deadline:
                raise ServerUnavailable(f"{self.title} did not start: {self.last_words()}")
            time.sleep(0.01)  # between two attempts to connect: there is nothing to wait on before it listens

    def last_words(self) -> str:
        """The end of its log, for error messages."""
        return "no log"
