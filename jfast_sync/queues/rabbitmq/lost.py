"""What the broker could not route, put back: a delay that ended while its named queue did not exist, mostly.

The queue is made again by the publishing of the job. A crash between that and the removal makes two of it, never none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from jfast_sync.errors import PayloadError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Connection
from jfast_sync.queues.rabbitmq.holding import HeldElsewhereError, HeldMessage, holding
from jfast_sync.queues.rabbitmq.message import Stored
from jfast_sync.queues.rabbitmq.publisher import Message
from jfast_sync.queues.rabbitmq.routing import Routing

__all__ = ["Lost"]

log = logging.getLogger("jfast_sync.queues.rabbitmq")

_EVERY: Final = 5.0  # seconds between two looks
_BATCH: Final = 500


class Lost:
    """The queue of what could not be routed.

    Args:
        routing: builds the messages.
        publish: stores messages, and makes the queues they are for where they are not known to exist.
        suspect: called before, as queues that are taken to exist may not.
    """

    def __init__(
        self, routing: Routing, *, publish: Callable[[Sequence[Message]], None], suspect: Callable[[], None]
    ) -> None:
        self._routing = routing
        self._publish = publish
        self._suspect = suspect
        self._look_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._look_at

    def put_back(self, connection: Connection) -> None:
        """Publish what is there to where it belongs; what is no job becomes a dead letter.

        Raises:
            MissingError: somebody has deleted the queue of what was lost.
            UnavailableError: not all could be stored; what could not is still there.
        """
        name = self._routing.topology.names.lost
        channel = connection.channel(Deadline(BOUND))
        there = channel.call("queue_declare", Deadline(BOUND), queue=name, passive=True).message_count
        channel.close()
        self._look_at = time.monotonic() + _EVERY
        if there:
            with suppress(HeldElsewhereError):  # by another worker, which puts it back
                self._put_back_all(connection, name)

    def _put_back_all(self, connection: Connection, name: str) -> None:
        self._suspect()
        found: list[HeldMessage] = []
        with holding(connection, name, found.append) as held:
            for start in range(0, len(found), _BATCH):
                batch = found[start : start + _BATCH]
                self._publish([self._message(each) for each in batch])
                held.remove(batch)
        log.warning("%d messages that RabbitMQ could not route are in their queues again", len(found))

    def _message(self, lost: HeldMessage) -> Message:
        now = datetime.now(UTC)
        try:
            stored = Stored.from_body(lost.body)
        except PayloadError as exc:
            return self._routing.undecodable(lost.body, f"it could not be routed, and is no job: {exc}", now)
        # Under the same id: where it was both routed and lost, a worker recognises the second one.
        return self._routing.due(stored, stored.due(now), now, lost.message_id)
