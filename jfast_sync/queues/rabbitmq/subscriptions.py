"""The consumers on one channel: who may still be handed what, and what is not acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from pika import spec

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Connection
from jfast_sync.queues.rabbitmq.ledger import Delivery
from jfast_sync.queues.rabbitmq.message import deliveries
from jfast_sync.queues.rabbitmq.names import WorkQueue
from jfast_sync.queues.rabbitmq.topology import Queue, Topology, declare

__all__ = ["Subscriptions"]

_MOST: Final = 65_535  # what a prefetch can be
_GOT: Final = ""  # the consumer of what was fetched without one


@dataclass(slots=True)
class _Consumer:
    work: WorkQueue
    prefetch: int
    unacknowledged: set[int] = field(default_factory=set)

    @property
    def credit(self) -> int:
        return self.prefetch - len(self.unacknowledged)


class Subscriptions:
    """Used by the connection's thread only.

    Args:
        connection: where the channel is opened.
        topology: the names and arguments of the work queues.
        on_delivery: takes a delivery; returns whether it is to be acknowledged at once.
    """

    def __init__(self, connection: Connection, topology: Topology, on_delivery: Callable[[Delivery], bool]) -> None:
        self._connection = connection
        self._topology = topology
        self._on_delivery = on_delivery
        self._channel = connection.channel(Deadline(BOUND))
        self._tags = count(1)
        self._standing: dict[WorkQueue, str] = {}
        self._consumers: dict[str, _Consumer] = {}  # the cancelled ones too, while something of theirs is held
        self._gone: set[str] = set()  # named queues of which the broker has cancelled a consumer
        self._answers: list[Any] = []
        amqp = self._channel.amqp
        amqp.add_on_cancel_callback(self._cancelled_by_broker)
        amqp.add_callback(lambda _frame: self._answers.append(None), [spec.Basic.GetEmpty], False)

    @property
    def hungry(self) -> bool:
        """Whether the broker may hand out something to this process."""
        return any(self._consumers[tag].credit > 0 for tag in self._standing.values())

    def is_hungry_on(self, works: Iterable[WorkQueue]) -> bool:
        """Whether there is credit on every one of these queues."""
        return all(work in self._standing and self._consumers[self._standing[work]].credit > 0 for work in works)

    def want(self, works: frozenset[WorkQueue], credit: int) -> None:
        """Consume from exactly these queues with about this credit; the rest is cancelled."""
        for work in sorted(self._standing.keys() - works):
            if self._consumers[self._standing[work]].credit > 0:
                self._cancel(work)
        for work in sorted(works):
            tag = self._standing.get(work)
            if tag is not None:
                left = self._consumers[tag].credit
                if left > 0 and left * 2 >= credit:
                    continue
                self._cancel(work)
            self._consume(work, credit)

    def cancel(self) -> None:
        """Consume from nothing; what is held stays held."""
        for work in list(self._standing):
            if self._consumers[self._standing[work]].credit > 0:
                self._cancel(work)

    def get(self, work: WorkQueue) -> bool:
        """Fetch one message without a consumer; return whether there was one."""
        self._answers.clear()
        self._channel.amqp.basic_get(
            self._topology.names.work(work), callback=lambda _channel, *answer: self._answers.append(answer)
        )
        self._channel.wait(lambda: bool(self._answers), Deadline(BOUND))
        answer = self._answers.pop()
        if answer is None:
            return False
        self._take(work, _GOT, *answer)
        return True

    def counts(self, works: Iterable[WorkQueue]) -> dict[WorkQueue, int]:
        """Count what is ready in each queue; declares it, so that one that was deleted is there again."""
        asked = sorted(works)
        answers: list[Any] = []
        for work in asked:
            part = self._queue(work)
            self._channel.amqp.queue_declare(part.name, durable=True, arguments=part.arguments, callback=answers.append)
        self._channel.wait(lambda: len(answers) == len(asked), Deadline(BOUND))
        return {work: answer.method.message_count for work, answer in zip(asked, answers, strict=True)}

    def barrier(self) -> None:
        """Wait until everything the broker had sent has arrived: a queue answers after what it delivered before."""
        for _ in range(2):
            self.counts(list(self._standing)[:1] or [WorkQueue(1, "default")])

    def acknowledge(self, held: Iterable[Delivery]) -> None:
        for delivery in held:
            self._channel.amqp.basic_ack(delivery.tag)
            self._settled(delivery)

    def requeue(self, held: Iterable[Delivery]) -> None:
        """Hand messages back; the broker counts that."""
        for delivery in held:
            self._channel.amqp.basic_nack(delivery.tag, requeue=True)
            self._settled(delivery)

    def check(self) -> None:
        """Notice what the broker has done to the channel; it does not tell otherwise.

        Raises:
            UnavailableError: the channel is closed.
        """
        if self._channel.error is not None:
            raise UnavailableError(f"RabbitMQ closed the channel: {self._channel.error}")
        gone, self._gone = self._gone, set()
        for queue in gone:
            declare(self._connection, list(self._topology.work_parts(queue)))

    def _consume(self, work: WorkQueue, prefetch: int) -> None:
        tag = f"jfast-{next(self._tags)}"
        prefetch = min(max(prefetch, 1), _MOST)
        self._consumers[tag] = _Consumer(work, prefetch)
        self._standing[work] = tag
        amqp = self._channel.amqp
        amqp.basic_qos(prefetch_count=prefetch)
        amqp.basic_consume(
            self._topology.names.work(work),
            lambda _channel, method, properties, body: self._take(work, tag, method, properties, body),
            consumer_tag=tag,
        )

    def _cancel(self, work: WorkQueue) -> None:
        tag = self._standing.pop(work)
        # Not by basic_cancel(): pika rejects what is still on its way to a consumer it has cancelled, and the broker
        # counts that. Without an answer the consumer stays known to pika, and late deliveries come here.
        amqp = self._channel.amqp
        amqp._rpc(spec.Basic.Cancel(consumer_tag=tag, nowait=True))
        self._sweep()

    def _sweep(self) -> None:
        """Forget consumers cancelled long ago."""
        standing = set(self._standing.values())
        old = [tag for tag, each in self._consumers.items() if tag not in standing and not each.unacknowledged]
        for tag in old[:-50]:
            del self._consumers[tag]
            self._channel.amqp._consumers.pop(tag, None)

    def _take(self, work: WorkQueue, tag: str, method: Any, properties: Any, body: bytes) -> None:
        delivery = Delivery(
            generation=0,
            tag=method.delivery_tag,
            consumer=tag,
            work=work,
            message_id=properties.message_id or f"tag-{id(self)}-{method.delivery_tag}",
            body=body,
            counted=deliveries(properties.headers),
            again=bool(method.redelivered),
        )
        if tag in self._consumers:
            self._consumers[tag].unacknowledged.add(delivery.tag)
        if self._on_delivery(delivery):
            self.acknowledge((delivery,))

    def _settled(self, delivery: Delivery) -> None:
        consumer = self._consumers.get(delivery.consumer)
        if consumer is not None:
            consumer.unacknowledged.discard(delivery.tag)

    def _cancelled_by_broker(self, frame: Any) -> None:
        consumer = self._consumers.get(frame.method.consumer_tag)
        if consumer is not None and self._standing.get(consumer.work) == frame.method.consumer_tag:
            del self._standing[consumer.work]
            self._gone.add(consumer.work.queue)

    def _queue(self, work: WorkQueue) -> Queue:
        return Queue(self._topology.names.work(work), self._topology.arguments())
