"""Which named queues there are: a broker does not list them over AMQP, so a stream tells their names.

A name is announced before its queues are made: where they exist, it has been announced. Every worker reads the stream
from its beginning and goes on listening, so that one that takes all queues hears of a new one at once.
"""

from __future__ import annotations

import threading
from typing import Any

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Channel, Connection
from jfast_sync.queues.rabbitmq.names import BANDS, DEFAULT_QUEUE, Names, WorkQueue

__all__ = ["Directory"]

_CATCH_UP = 1.0


class Directory:
    """The named queues this process knows of; from any thread, except :meth:`follow` and :meth:`check`."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._known = {DEFAULT_QUEUE}
        self._channel: Channel | None = None

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

    def catch_up(self, connection: Connection) -> None:
        """Read what the stream holds now, where nobody in this process follows it."""
        if self._channel is None or not self._channel.is_open:
            self._read(connection).close()

    def check(self) -> None:
        """Notice that the broker has closed the stream's channel."""
        if self._channel is not None and self._channel.error is not None:
            raise UnavailableError(f"RabbitMQ closed a channel: {self._channel.error}")

    def _read(self, connection: Connection) -> Channel:
        deadline = Deadline(BOUND)
        channel = connection.channel(deadline)
        read: list[None] = []

        def heard(amqp: Any, method: Any, _properties: Any, body: bytes) -> None:
            self.add(body.decode(errors="replace"))
            read.append(None)
            amqp.basic_ack(method.delivery_tag)

        there = channel.call("queue_declare", deadline, queue=self._names.directory, passive=True).message_count
        channel.call("basic_qos", deadline, prefetch_count=500)
        channel.amqp.basic_consume(self._names.directory, heard, arguments={"x-stream-offset": "first"})
        try:
            channel.wait(lambda: len(read) >= there, Deadline(_CATCH_UP))
        except UnavailableError:
            if not channel.is_open:
                raise  # otherwise only slow, or counted more than it tells: the rest comes when it comes
        return channel
