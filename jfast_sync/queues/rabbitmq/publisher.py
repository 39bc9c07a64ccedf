"""Publishing with confirms: whatever returns normally is stored by the broker.

A publisher has a connection of its own: the broker stops reading from a connection that publishes while an alarm is
on, and acknowledgements must go on. It is driven by the calling thread, under a lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pika

from jfast_sync.errors import SchemaError, UnavailableError
from jfast_sync.job import new_id
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Channel, Connection, MissingError, Server

__all__ = ["Message", "Publisher", "new_message_id"]

_REMEMBERED: Final = 30.0  # seconds for which an alarm that was met is told of
_WINDOW: Final = 400  # messages on their way without a confirm


def new_message_id() -> str:
    """Return a fresh id of one stored message: another copy of the same job has another one."""
    return new_id()


@dataclass(slots=True)
class Message:
    """One message to store, and what became of it."""

    exchange: str
    routing_key: str
    body: bytes
    message_id: str = field(default_factory=new_message_id)
    queue: str | None = None  # the named queue it is for at last
    headers: dict[str, Any] | None = None
    stored: bool = False
    returned: bool = False
    refused: bool = False

    @property
    def properties(self) -> pika.BasicProperties:
        return pika.BasicProperties(
            content_type="application/json", delivery_mode=2, message_id=self.message_id, headers=self.headers
        )


class Publisher:
    """Stores messages; fork-safe, from any thread, one batch at a time.

    Args:
        server: where the broker is.
        name: of the connection in the broker's listings.
        repair: called with messages that no queue took; makes the missing queue. They are published once more.
    """

    def __init__(self, server: Server, name: str, repair: Callable[[Connection, Sequence[Message]], None]) -> None:
        self._server = server
        self._name = name
        self._repair = repair
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._sent = 0
        self._held_back = ("", -1e9)  # the latest reason, and when
        self._on_confirm: Callable[[Any], None] = lambda _frame: None
        self._on_return: Callable[[str], None] = lambda _message_id: None

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages and wait for the broker's confirms; sets ``stored`` on each.

        Raises:
            UnavailableError: not all are stored; those that are say so.
        """
        with self._locked() as deadline:
            try:
                self._publish(messages, deadline)
            except MissingError:  # an exchange of the cascade is not there; the channel is gone with it
                self._let_go()
                self._repair(self._ready(deadline)[0], messages)
                self._publish([message for message in messages if not message.stored], deadline)
            except UnavailableError:
                self._let_go()
                if deadline.passed:
                    raise
                # The connection was lost: published again once, under the same ids, so that a copy is recognised.
                self._publish([message for message in messages if not message.stored], deadline)
            except SchemaError:
                self._let_go()
                raise
            self._publish_missing(messages, deadline)
            self._held_back = ("", -1e9)
        refused = [message for message in messages if not message.stored]
        if refused:
            raise UnavailableError(
                f"RabbitMQ did not take {len(refused)} of {len(messages)} messages "
                f"(a length limit or policy on {refused[0].routing_key}?)"
            )

    def use(self, work: Callable[[Connection], None]) -> None:
        """Do something else on the connection, such as declaring a queue before publishing to it."""
        with self._locked() as deadline:
            try:
                work(self._ready(deadline)[0])
            except UnavailableError:
                self._let_go()
                work(self._ready(deadline)[0])

    @property
    def blocked(self) -> str | None:
        """Why the broker holds this publisher back; None where it does not, as far as is known."""
        connection = self._connection
        if connection is not None and self._pid == os.getpid() and connection.blocked is not None:
            return connection.blocked
        return self._held_back[0] if time.monotonic() - self._held_back[1] < _REMEMBERED else None

    def close(self) -> None:
        """Let go of the connection; idempotent."""
        if self._pid == os.getpid():
            with self._lock:
                self._let_go()

    def _locked(self) -> _Turn:
        if self._pid != os.getpid():  # threads and connections do not survive a fork, and a lock may be held for ever
            if self._connection is not None:
                self._connection.abandon()
                _of_the_parent.append(self._connection)
            self._fresh()
        return _Turn(self._lock, self._server)

    def _publish(self, messages: Sequence[Message], deadline: Deadline) -> None:
        waiting: dict[int, Message] = {}
        by_id = {message.message_id: message for message in messages}
        _, channel = self._ready(deadline)
        self._on_confirm = lambda frame: _confirmed(waiting, frame)
        self._on_return = lambda message_id: _mark_returned(by_id, message_id)
        for message in messages:
            message.returned = message.refused = False
            if len(waiting) >= _WINDOW:
                channel.wait(lambda: len(waiting) < _WINDOW // 2, deadline)
            self._sent += 1
            waiting[self._sent] = message
            channel.amqp.basic_publish(
                message.exchange, message.routing_key, message.body, message.properties, mandatory=True
            )
        channel.wait(lambda: not waiting, deadline)

    def _publish_missing(self, messages: Sequence[Message], deadline: Deadline) -> None:
        returned = [message for message in messages if message.returned]
        if returned:
            self._repair(self._ready(deadline)[0], returned)
            self._publish(returned, deadline)

    def _ready(self, deadline: Deadline) -> tuple[Connection, Channel]:
        """Return the connection and its channel in confirm mode, new where the old one does not stand any more."""
        if self._connection is not None and self._channel is not None:
            if self._connection.is_usable() and self._channel.is_open:
                return self._connection, self._channel
            self._let_go()
        self._connection = Connection(self._server, self._name)
        self._channel = self._connection.channel(deadline)
        self._channel.call("confirm_delivery", deadline, ack_nack_callback=lambda frame: self._on_confirm(frame))  # noqa: PLW0108 - it changes with every batch
        self._channel.amqp.add_on_return_callback(
            lambda _channel, _method, properties, _body: self._on_return(properties.message_id)
        )
        self._sent = 0
        return self._connection, self._channel

    def _let_go(self) -> None:
        if self._connection is not None:
            if self._connection.blocked is not None:
                self._held_back = self._connection.blocked, time.monotonic()
            self._connection.close()
        self._connection = self._channel = None


_of_the_parent: list[Connection] = []  # kept, so that no destructor speaks on a socket that is the parent's


class _Turn:
    """Whose turn it is to publish, within the bound of one call."""

    def __init__(self, lock: threading.Lock, server: Server) -> None:
        self._lock = lock
        self._server = server
        self._deadline = Deadline(BOUND)

    def __enter__(self) -> Deadline:
        if not self._lock.acquire(timeout=self._deadline.remaining()):
            raise UnavailableError(f"RabbitMQ at {self._server.shown} is too slow: others wait to publish as well")
        return self._deadline

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def _confirmed(waiting: dict[int, Message], frame: Any) -> None:
    method = frame.method
    number = method.delivery_tag
    numbers = [each for each in waiting if each <= number] if method.multiple else [number]
    for each in numbers:
        message = waiting.pop(each, None)
        if message is not None:
            good = method.NAME == "Basic.Ack" and not message.returned
            message.stored, message.refused = good, not good


def _mark_returned(by_id: dict[str, Message], message_id: str) -> None:
    message = by_id.get(message_id)
    if message is not None:
        message.returned = True
