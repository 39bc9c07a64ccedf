"""Reading a whole queue over plain AMQP: hold all of it for a moment, keep what is wanted, give the rest back.

Giving back is closing the channel: that takes no time and keeps the order of a classic queue, where handing back 10,000
by `basic.nack` freezes the queue for many seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Channel, Connection

__all__ = ["HeldElsewhereError", "HeldMessage", "Holding", "holding"]

_WINDOW: Final = 5_000  # messages a consumer is handed at once: a quorum queue does nothing else meanwhile
_ELSEWHERE: Final = 5.0  # seconds to wait for another reader to give back what it holds
_STALLED: Final = 0.5  # seconds without a message after which the broker is asked whether there is more
_RETURNING: Final = 5.0  # seconds to wait for what was given back to be there again


class HeldElsewhereError(UnavailableError):
    """Another reader holds the whole queue, which seems empty meanwhile."""


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """One message of the queue; it is there again unless :meth:`Holding.remove` is told of it."""

    tag: int
    message_id: str
    headers: Mapping[str, Any] | None
    body: bytes


class Holding:
    """What is held of a queue."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.count = 0

    def remove(self, messages: Iterable[HeldMessage]) -> None:
        """Take messages out of the queue for good."""
        for message in messages:
            self._channel.amqp.basic_ack(message.tag)
            self.count -= 1
        # Acknowledgements have no answer; that of the next request says that they were read.
        self._channel.call("basic_qos", Deadline(BOUND), prefetch_count=1)


@contextmanager
def holding(connection: Connection, queue: str, see: Callable[[HeldMessage], None]) -> Iterator[Holding]:
    """Hold what is in a queue for the block; ``see`` is called once with every message.

    What ``see`` does not keep is not kept in memory. A process that dies meanwhile gives everything back.

    Raises:
        HeldElsewhereError: another reader has held all of it for a while.
    """
    channel = connection.channel(Deadline(BOUND))
    held = Holding(channel)
    _read(connection, channel, queue, see, held)
    yield held
    channel.close()
    _wait_until_back(connection, queue, held.count)


def _read(
    connection: Connection, channel: Channel, queue: str, see: Callable[[HeldMessage], None], held: Holding
) -> None:
    elsewhere = Deadline(_ELSEWHERE)
    while (there := _ask(channel, queue)).consumer_count and not elsewhere.passed:
        connection.pump(0.02)  # only readers consume such a queue, and it seems empty while one does
    count = int(there.message_count)
    if there.consumer_count and not count:
        raise HeldElsewhereError(f"another process is reading all that is in {queue} just now; try again in a moment")

    def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
        held.count += 1
        message_id = properties.message_id or f"message-{method.delivery_tag}"
        see(HeldMessage(method.delivery_tag, message_id, properties.headers, body))

    while held.count < count:  # every consumer keeps what it was handed, so the next window takes another one
        window = min(count - held.count, _WINDOW)
        channel.call("basic_qos", Deadline(BOUND), prefetch_count=window)
        channel.amqp.basic_consume(queue, take)
        if not _is_filled(channel, queue, held, held.count + window):
            return


def _is_filled(channel: Channel, queue: str, held: Holding, wanted: int) -> bool:
    """Wait for so many messages; return False where no more come: another reader holds them.

    Raises:
        UnavailableError: messages are there, and the broker does not hand them out.
    """
    stalled = Deadline(BOUND)
    while (seen := held.count) < wanted:
        try:
            channel.wait(partial(_is_past, held, seen), Deadline(_STALLED))
            stalled = Deadline(BOUND)
        except UnavailableError:
            if channel.error is not None or stalled.passed:
                raise
            if not _ask(channel, queue).message_count and held.count == seen:
                return False
    return True


def _is_past(held: Holding, seen: int) -> bool:
    return held.count > seen


def _wait_until_back(connection: Connection, queue: str, count: int) -> None:
    """Wait until what was held is there again: the next reader must not find nothing."""
    asking, deadline = connection.channel(Deadline(BOUND)), Deadline(_RETURNING)
    while _ask(asking, queue).message_count < count and not deadline.passed:
        connection.pump(0.005)
    asking.close()


def _ask(channel: Channel, queue: str) -> Any:
    return channel.call("queue_declare", Deadline(BOUND), queue=queue, passive=True)
