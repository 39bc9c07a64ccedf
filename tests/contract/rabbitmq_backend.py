"""The harness for RabbitMQ: time passes by moving every message to where it would be by then."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urlsplit, urlunsplit

from jfast_sync.ports import DeadLetters, Queue
from jfast_sync.queues.rabbitmq.cascade import Cascade
from jfast_sync.queues.rabbitmq.names import Names
from jfast_sync.queues.rabbitmq.topology import Topology
from tests.contract.backends import Backend, MemoryBackend, Server, unused_port
from tests.servers.rabbitmq_contents import Contents
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.servers import Proxy


#: Few levels are declared faster, and their range is passed by some of the tests' delays.
CASCADE = Cascade(levels=8, tick_ms=1000)


_QUIET = 0.05


class RabbitBackend(Backend):
    """A broker keeps no clock for leases, no ids, no counters, and hands out band by band: those it does not declare.

    Its URL's fragment is the queue's name.
    """

    name = "rabbitmq"
    url = "emptied_rabbitmq_url"
    bare_url = "fresh_rabbitmq_url"
    capabilities = frozenset({DeadLetters, Server})
    undecodable = MemoryBackend.undecodable

    def __init__(self, url: str) -> None:
        plain, self._name = urldefrag(url)
        super().__init__(plain)
        self._direct = plain

    def _open(self, patient: bool, options: dict[str, Any]) -> Queue:
        from jfast_sync.queues.rabbitmq.connection import Server as Broker
        from jfast_sync.queues.rabbitmq.queue import RabbitQueue

        queue = RabbitQueue(Broker(url=self.dsn), name=self._name, cascade=CASCADE, **options)
        queue.policies.try_at = math.inf  # nobody sets any here
        queue.consumer.linger = 0.03
        queue._directory.quiet = 0.03  # the broker is on this machine
        return queue

    def now(self) -> datetime:
        return datetime.now(UTC)

    def pass_time(self, seconds: float) -> None:
        queues: list[Any] = self._queues
        # What was delivered and not claimed is on its way back; it has to be there to be moved.
        for queue in queues:
            eventually(partial(_is_still, queue), what="deliveries to go back")
        self._contents.pass_time(seconds)

    def put_undecodable(self, kind: str | None = None) -> None:
        self.open()
        self._contents.put(self._body(kind))

    @property
    def _contents(self) -> Contents:
        queues: list[Any] = self._queues
        names = {name for queue in queues for name in queue._directory.known()}
        return Contents(self._direct, Topology(Names.of(self._name), cascade=CASCADE), names)

    def close(self) -> None:
        super().close()
        self._contents.empty()

    def behind(self, proxy: Proxy) -> None:
        """Have every queue opened from now on reach the server through `proxy`."""
        self.dsn = proxy.dsn(self._direct)

    def open_unreachable(self) -> Queue:
        """Open a queue whose server is not there."""
        there, self.dsn = self.dsn, f"amqp://jfast:s3cret@127.0.0.1:{unused_port()}/"
        try:
            queue: Queue = self.open_bare()
            return queue
        finally:
            self.dsn = there

    @property
    def port(self) -> int:
        """Where the server listens."""
        return urlsplit(self._direct).port or 5672


def _is_still(queue: Any) -> bool:
    """Whether nothing is held unclaimed, nor on its way: a quorum queue delivers a little after it has confirmed."""
    subscriptions = queue.consumer._subscriptions
    if queue.consumer._claiming or subscriptions is None:
        return True
    return not queue.consumer.waiting() and time.monotonic() - subscriptions._moved > _QUIET


def with_name(url: str, name: str) -> str:
    """The URL of a queue for this harness."""
    return urlunsplit(urlsplit(url)._replace(fragment=name))
