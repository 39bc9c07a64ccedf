"""Making named queues when they are first used, and again when somebody has deleted them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Connection, MissingError
from jfast_sync.queues.rabbitmq.directory import AGAIN_HEADER, Directory
from jfast_sync.queues.rabbitmq.names import BANDS, DEFAULT_QUEUE, WorkQueue
from jfast_sync.queues.rabbitmq.publisher import Message, new_message_id
from jfast_sync.queues.rabbitmq.topology import Topology, declare

__all__ = ["Maker"]

_FRESH: Final = 10.0


class Maker:
    """Knows which named queues exist, and makes those that do not."""

    def __init__(self, topology: Topology, directory: Directory) -> None:
        self._topology = topology
        self._directory = directory
        self._made: set[str] = set()
        self._lock = threading.Lock()
        self._setup_until = 0.0  # monotonic: for so long what was declared is taken to be there
        self.declared = False  # whether this process has declared everything, and missed nothing since

    def missing(self, queues: set[str]) -> set[str]:
        """Return those not known to exist: what goes into the cascade must have an end there."""
        with self._lock:
            return queues - self._made

    def forget(self) -> None:
        """Something turned out to be missing: look at everything again."""
        with self._lock:
            self._made.clear()
            self._setup_until = 0.0
            self.declared = False

    def setup(self, connection: Connection) -> None:
        """Declare everything, unless this process has just done so."""
        if time.monotonic() >= self._setup_until:
            self._topology.setup(connection)
            self._setup_until = time.monotonic() + _FRESH
            self.declared = True

    def ensure(self, connection: Connection, queues: set[str]) -> None:
        """Make named queues that do not exist."""
        for queue in sorted(queues):
            if not self._exists(connection, queue):
                self._topology.setup(connection)
                self._make(connection, queue)
            self._note(queue)

    def repair(self, connection: Connection, returned: Sequence[Message]) -> None:
        """Make what a message that came back was meant for."""
        self._topology.setup(connection)
        for queue in sorted({message.queue for message in returned if message.queue is not None}):
            with self._lock:
                again = queue == DEFAULT_QUEUE or queue in self._made
            self._make(connection, queue, again=again)
            self._note(queue)

    def _exists(self, connection: Connection, queue: str) -> bool:
        deadline = Deadline(BOUND)
        channel = connection.channel(deadline)
        try:
            for band in range(len(BANDS)):  # all of them: somebody may have deleted one
                name = self._topology.names.work(WorkQueue(band, queue))
                channel.call("queue_declare", deadline, queue=name, passive=True)
        except MissingError:
            return False
        channel.close()
        return True

    def _make(self, connection: Connection, queue: str, *, again: bool = False) -> None:
        """Announce, then make: a worker that misses the announcement would never look into the queue.

        ``again`` tells those who consume it to do so afresh, as the broker may not tell them that it was deleted.
        """
        deadline = Deadline(BOUND)
        channel = connection.channel(deadline)
        confirmed: list[object] = []
        channel.call("confirm_delivery", deadline, ack_nack_callback=confirmed.append)
        headers = {AGAIN_HEADER: True} if again else None
        announcement = Message("", self._topology.names.directory, queue.encode(), new_message_id(), headers=headers)
        channel.amqp.basic_publish("", announcement.routing_key, announcement.body, announcement.properties)
        channel.wait(lambda: bool(confirmed), deadline)
        channel.close()
        declare(connection, list(self._topology.work_parts(queue)))

    def _note(self, queue: str) -> None:
        with self._lock:
            self._made.add(queue)
        self._directory.add(queue)
