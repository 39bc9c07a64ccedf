"""Which named queues there are: a broker does not list them over AMQP, so a stream tells their names.

A name is announced before its queues are made: where they exist, it has been announced. Every worker reads the stream
from its beginning and goes on listening, so that one that takes all queues hears of a new one at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Channel, Connection, MissingError, failure
from jfast_sync.queues.rabbitmq.names import BANDS, DEFAULT_QUEUE, Names, WorkQueue

__all__ = ["AGAIN_HEADER", "Directory"]

AGAIN_HEADER: Final = "jfast-again"

_QUIET: Final = 0.1  # seconds


class Directory:
    """The named queues this process knows of; from any thread, except :meth:`follow` and :meth:`check`."""

    def __init__(self, names: Names) -> None:
        self.on_news: Callable[[], None] = lambda: None  # called when another process has made a queue
        self.quiet = _QUIET  # how long nothing has to come for the stream to be read to its end
        self._names = names
        self._lock = threading.Lock()
        self._known = {DEFAULT_QUEUE}
        self._channel: Channel | None = None
        self._made_again: str | None = None  # a queue that was deleted and made again while we followed

    def add(self, queue: str) -> None:
        """This process has made a queue, or seen it."""
        with self._lock:
            self._known.add(queue)

    def forget(self, queue: str) -> None:
        """A queue turned out not to exist."""
        with self._lock:
            self._known.discard(queue)
            self._known.add(DEFAULT_QUEUE)

    def known(self) -> list[str]:
        with self._lock:
            return sorted(self._known)

    def works(self, queues: frozenset[str] | None) -> frozenset[WorkQueue]:
        """Return the AMQP queues to consume for some named queues, or for all that are known."""
        names = self.known() if queues is None else queues
        return frozenset(WorkQueue(band, name) for name in names for band in range(len(BANDS)))

    def follow(self, connection: Connection) -> None:
        """Read the stream from its beginning, and go on reading whenever the connection is driven."""
        self._channel = self._read(connection)
        self._made_again = None  # that is history

    def catch_up(self, connection: Connection) -> None:
        """Read what the stream holds now, where nobody in this process follows it."""
        if self._channel is None or not self._channel.is_open:
            self._read(connection).close()

    def check(self) -> None:
        """Notice that the broker has closed the stream's channel, or that consumers may be forgotten.

        Raises:
            MissingError: a queue was deleted and made again; what consumes it may not have been told.
            UnavailableError: the channel is closed.
        """
        if self._channel is not None and self._channel.error is not None:
            raise UnavailableError(f"RabbitMQ closed a channel: {self._channel.error}")
        if self._made_again is not None:
            raise MissingError(f"the queue {self._made_again!r} was deleted in RabbitMQ and made again")

    def _read(self, connection: Connection) -> Channel:
        deadline = Deadline(BOUND)
        channel = connection.channel(deadline)
        read: list[None] = []

        def heard(amqp: Any, method: Any, properties: Any, body: bytes) -> None:
            name = body.decode(errors="replace")
            self.add(name)
            if (properties.headers or {}).get(AGAIN_HEADER):
                self._made_again = name
            read.append(None)
            self.on_news()
            amqp.basic_ack(method.delivery_tag)

        channel.call("basic_qos", deadline, prefetch_count=500)
        channel.amqp.basic_consume(self._names.directory, heard, arguments={"x-stream-offset": "first"})
        # A stream does not tell its length reliably: it has been read when nothing comes for a moment.
        seen = -1
        while len(read) > seen:
            seen = len(read)
            with suppress(UnavailableError):
                channel.wait(partial(_more, read, seen), Deadline(self.quiet))
        if channel.error is not None:
            raise failure(channel.error)
        return channel


def _more(read: list[None], than: int) -> bool:
    return len(read) > than
