"""What has to exist in the broker, as values, and making it exist.

Every declaration is explicit and durable, so that no default of a newer broker changes what it means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from jfast_sync.errors import SchemaError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.cascade import DEFAULT, Cascade
from jfast_sync.queues.rabbitmq.connection import Channel, Connection
from jfast_sync.queues.rabbitmq.names import BANDS, DEFAULT_QUEUE, Names, WorkQueue

__all__ = ["Binding", "Exchange", "Queue", "Topology"]

#: Never -1, which deletes a message at its first return on RabbitMQ 3.10, and never absent, which is 20 from 4.0 on.
_DELIVERY_LIMIT: Final = 1_000_000
_SETUP_BOUND: Final = 30.0
_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<arg>[^']+)' for (?P<kind>queue|exchange) '(?P<name>[^']+)'.*?"
    r"received (?P<wanted>.*?) but current is (?P<there>.*?)(?:\"|\)|$)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: str = "topic"
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Binding:
    """``source`` (an exchange) leads to a queue, or to another exchange."""

    source: str
    pattern: str
    target: str
    to_exchange: bool = False


Part = Exchange | Queue | Binding


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything under one prefix.

    Args:
        names: what the parts are called.
        queue_type: "quorum", or "classic", which loses confirmed jobs when the broker is killed.
        cascade: levels and unit of the delays.
    """

    names: Names
    queue_type: str = "quorum"
    cascade: Cascade = DEFAULT

    def parts(self) -> Iterator[Part]:
        """Give all that setup declares, each after what it needs."""
        names = self.names
        yield Exchange(names.lost, "fanout")
        yield Queue(names.lost, self.arguments())
        yield Binding(names.lost, "", names.lost)
        yield Queue(names.dead, self.arguments())
        yield Exchange(names.main, "topic", {"alternate-exchange": names.lost})
        for level in range(self.cascade.levels):
            yield Exchange(names.level(level), "topic", {"alternate-exchange": names.lost})
        for level in range(self.cascade.levels):
            yield Queue(names.level(level), self._level_arguments(level))
        for jump in self.cascade.jumps():
            target = names.main if jump.target is None else names.level(jump.target)
            yield Binding(names.level(jump.source), jump.pattern, target, to_exchange=jump.target is None)
        yield Queue(names.directory, {"x-queue-type": "stream"})
        yield from self.work_parts(DEFAULT_QUEUE)

    def work_parts(self, queue: str) -> Iterator[Part]:
        """Give the work queues of one named queue; the one of priority 0 last: where it exists, all do."""
        for band in sorted(range(len(BANDS)), key=lambda band: BANDS[band] == "normal"):
            work = WorkQueue(band, queue)
            yield Queue(self.names.work(work), self.arguments())
            yield Binding(self.names.main, self.names.arrival(work), self.names.work(work))

    def setup(self, connection: Connection) -> None:
        """Declare everything; idempotent.

        Raises:
            SchemaError: something of the name is there with other arguments.
        """
        declare(connection, list(self.parts()))

    def erase(self, connection: Connection, queues: Iterable[str]) -> None:
        """Delete everything, the work queues of these named queues too."""
        parts = [*self.parts(), *(part for queue in queues for part in self.work_parts(queue))]
        deadline = Deadline(_SETUP_BOUND)
        channel = connection.channel(deadline)
        answered: list[object] = []
        doomed = [part for part in parts if not isinstance(part, Binding)]
        for part in doomed:
            delete = channel.amqp.queue_delete if isinstance(part, Queue) else channel.amqp.exchange_delete
            delete(part.name, callback=answered.append)
        channel.wait(lambda: len(answered) == len(doomed), deadline)
        channel.close()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of every queue, to which a level adds its own.

        A queue that a policy's max-length fills refuses what comes, where the broker would drop the oldest jobs.
        """
        if self.queue_type == "classic":
            return {"x-queue-type": "classic", "x-overflow": "reject-publish"}
        return {"x-queue-type": "quorum", "x-delivery-limit": _DELIVERY_LIMIT, "x-overflow": "reject-publish"}

    def _level_arguments(self, level: int) -> dict[str, Any]:
        arguments = {
            **self.arguments(),
            "x-message-ttl": self.cascade.ttl_ms(level),
            "x-dead-letter-exchange": self.names.level(level - 1) if level else self.names.main,
        }
        if self.queue_type == "classic":
            return arguments
        # Without reject-publish the broker falls back to at-most-once, and says so in its log only.
        return {**arguments, "x-dead-letter-strategy": "at-least-once"}


def declare(connection: Connection, parts: list[Part]) -> None:
    """Declare parts in order, all requests ahead of the answers."""
    deadline = Deadline(_SETUP_BOUND)
    channel = connection.channel(deadline)
    answered: list[object] = []
    for part in parts:
        _ask(channel, part, answered)
    try:
        channel.wait(lambda: len(answered) == len(parts), deadline)
    except SchemaError as exc:
        raise _explained(exc) from exc.__cause__
    channel.close()


def _ask(channel: Channel, part: Part, answered: list[object]) -> None:
    amqp = channel.amqp
    match part:
        case Exchange(name, kind, arguments):
            amqp.exchange_declare(name, kind, durable=True, arguments=arguments, callback=answered.append)
        case Queue(name, arguments):
            amqp.queue_declare(name, durable=True, arguments=arguments, callback=answered.append)
        case Binding(source, pattern, target, to_exchange):
            bind = amqp.exchange_bind if to_exchange else amqp.queue_bind
            bind(target, source, pattern, callback=answered.append)


def _explained(error: SchemaError) -> SchemaError:
    found = _INEQUIVALENT.search(str(error))
    if found is None:
        return error
    part = found.groupdict()
    return SchemaError(
        f"RabbitMQ's {part['kind']} {part['name']} exists with another {part['arg']}: it has {_value(part['there'])}, "
        f"this configuration needs {_value(part['wanted'])}. Drain it and delete it (`rabbitmqctl delete_queue "
        f"{part['name']}`), or choose another [plugin.queue] name, or set rabbitmq_queue_type to what is there"
    )


def _value(text: str) -> str:
    """Return a value as the broker prints it, without its words around it."""
    quoted = re.search(r"value '([^']*)'", text)
    return f"'{quoted.group(1)}'" if quoted else text.strip()
