"""The consumers on one channel: who may still be handed what, and what is not acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from pika import spec

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Connection
from jfast_sync.queues.rabbitmq.ledger import Delivery
from jfast_sync.queues.rabbitmq.message import deliveries
from jfast_sync.queues.rabbitmq.names import BANDS, DEFAULT_QUEUE, WorkQueue
from jfast_sync.queues.rabbitmq.topology import Topology, declare

__all__ = ["Subscriptions"]

_QUIET: Final = 0.05  # seconds
_STARVED: Final = 3.0  # seconds
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
        self._standing: list[str] = []  # tags of consumers, oldest first
        self._starving: float | None = None  # monotonic: since when jobs are ready that do not come
        self._moved = 0.0  # monotonic: when something was last delivered or acknowledged
        self._consumers: dict[str, _Consumer] = {}  # the cancelled ones too, while something of theirs is held
        self._gone: set[str] = set()  # named queues of which the broker has cancelled a consumer
        self._answers: list[Any] = []
        amqp = self._channel.amqp
        amqp.add_on_cancel_callback(self._cancelled_by_broker)
        amqp.add_callback(lambda _frame: self._answers.append(None), [spec.Basic.GetEmpty], False)

    @property
    def engaged(self) -> bool:
        """Whether there is any consumer."""
        return bool(self._standing)

    def is_hungry_on(self, works: Iterable[WorkQueue]) -> bool:
        """Whether there is credit on every one of these queues."""
        hungry = {self._consumers[tag].work for tag in self._standing if self._consumers[tag].credit > 0}
        return hungry.issuperset(works)

    def consume(self, work: WorkQueue, credit: int) -> None:
        """Be handed up to so many messages more; a queue may have several consumers here."""
        self._cancel_full(work)
        tag = f"jfast-{next(self._tags)}"
        credit = min(max(credit, 1), _MOST)
        self._consumers[tag] = _Consumer(work, credit)
        self._standing.append(tag)
        amqp = self._channel.amqp
        amqp.basic_qos(prefetch_count=credit)
        amqp.basic_consume(
            self._topology.names.work(work),
            lambda _channel, method, properties, body: self._take(work, tag, method, properties, body),
            consumer_tag=tag,
        )

    def watch(self, works: Iterable[WorkQueue]) -> None:
        """Be handed one message of each of these queues, where there is no credit yet.

        One, because a consumer that may be handed something cannot be cancelled without a risk.
        """
        for work in sorted(works):
            if not self.is_hungry_on((work,)):
                self.consume(work, 1)

    def retire(self, keep: frozenset[WorkQueue] = frozenset(), *, least: int = 1) -> bool:
        """Cancel what can be cancelled on all queues but those to ``keep``; return whether more is left to cancel.

        Not while a message may be on its way: the broker takes back what it had sent to a consumer that is cancelled,
        and counts that as a delivery, which looks like the crash of a worker. A consumer without credit is safe, and
        one of larger credit is when nothing has moved for a moment. Those that wait for up to ``least`` are left.
        """
        quiet = time.monotonic() - self._moved >= _QUIET
        left = False
        for tag in list(self._standing):
            consumer = self._consumers[tag]
            if consumer.work in keep:
                continue
            if consumer.credit <= 0 or (quiet and consumer.prefetch > least):
                self._cancel(tag)
            else:
                left = left or consumer.prefetch > least
        return left

    def cancel(self) -> None:
        """Cancel every consumer, come what may."""
        for tag in list(self._standing):
            self._cancel(tag)

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
        """Count what is ready in each queue.

        Raises:
            MissingError: one is not there. To declare it here would leave it without its binding.
        """
        asked = sorted(works)
        answers: list[Any] = []
        for work in asked:
            self._channel.amqp.queue_declare(self._topology.names.work(work), passive=True, callback=answers.append)
        self._channel.wait(lambda: len(answers) == len(asked), Deadline(BOUND))
        return {work: answer.method.message_count for work, answer in zip(asked, answers, strict=True)}

    def check_fed(self, counts: Mapping[WorkQueue, int]) -> None:
        """Notice consumers that the broker has forgotten.

        Where a queue is deleted and made again at once, RabbitMQ may neither cancel its consumers nor feed them.

        Raises:
            UnavailableError: jobs are ready and a consumer here has credit, and for a while nothing has come of it.
        """
        now = time.monotonic()
        if not any(count and self.is_hungry_on((work,)) for work, count in counts.items()):
            self._starving = None
        elif self._starving is None or self._moved > self._starving:
            self._starving = now
        elif now - self._starving >= _STARVED:
            raise UnavailableError("RabbitMQ has jobs and hands out none; the connection is made again")

    def barrier(self) -> None:
        """Wait until everything the broker had sent has arrived: a queue answers after what it delivered before."""
        for _ in range(2):
            self.counts([WorkQueue(1, DEFAULT_QUEUE)])

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
            self.watch(WorkQueue(band, queue) for band in range(len(BANDS)))

    def _cancel_full(self, work: WorkQueue) -> None:
        for tag in list(self._standing):
            if self._consumers[tag].work == work and self._consumers[tag].credit <= 0:
                self._cancel(tag)

    def _cancel(self, tag: str) -> None:
        self._standing.remove(tag)
        # Not by basic_cancel(): pika rejects what is still on its way to a consumer it has cancelled, and the broker
        # counts that. Without an answer the consumer stays known to pika, and late deliveries come here.
        amqp = self._channel.amqp
        amqp._rpc(spec.Basic.Cancel(consumer_tag=tag, nowait=True))
        self._sweep()

    def _sweep(self) -> None:
        """Forget consumers cancelled long ago."""
        standing = set(self._standing)
        old = [tag for tag, each in self._consumers.items() if tag not in standing and not each.unacknowledged]
        for tag in old[:-50]:
            del self._consumers[tag]
            self._channel.amqp._consumers.pop(tag, None)

    def _take(self, work: WorkQueue, tag: str, method: Any, properties: Any, body: bytes) -> None:
        self._moved = time.monotonic()
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
        self._moved = time.monotonic()
        consumer = self._consumers.get(delivery.consumer)
        if consumer is not None:
            consumer.unacknowledged.discard(delivery.tag)

    def _cancelled_by_broker(self, frame: Any) -> None:
        consumer = self._consumers.get(frame.method.consumer_tag)
        if consumer is not None and frame.method.consumer_tag in self._standing:
            self._standing.remove(frame.method.consumer_tag)
            self._gone.add(consumer.work.queue)
