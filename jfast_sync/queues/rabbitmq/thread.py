"""The thread that owns the consuming connection: it serves heartbeats, takes deliveries, acknowledges, reconnects.

Consumers stand only while somebody claims: what is delivered here is kept from all other workers. Credit is what the
claim asked for; when no claim has come for a moment, consumers are cancelled and what they still brought goes back as
copies, because handing a message back raises the broker's delivery count, which is how crashes are counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from jfast_sync.backoff import backoff
from jfast_sync.errors import JFastError, UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import Connection, MissingError, Server
from jfast_sync.queues.rabbitmq.directory import Directory
from jfast_sync.queues.rabbitmq.ledger import Arrival, Delivery, Ledger
from jfast_sync.queues.rabbitmq.making import Maker
from jfast_sync.queues.rabbitmq.names import WorkQueue
from jfast_sync.queues.rabbitmq.publisher import Publisher
from jfast_sync.queues.rabbitmq.subscriptions import Subscriptions
from jfast_sync.queues.rabbitmq.topology import Topology
from jfast_sync.redact import error_text

__all__ = ["ConsumingThread"]

log = logging.getLogger("jfast_sync.queues.rabbitmq")

T = TypeVar("T")

_AGAIN_BASE, _AGAIN_CAP = 0.1, 2.0
_LEAVE: Final = 0.5
_SEEK_EVERY: Final = 1.0


class ConsumingThread:
    """The thread's side of :class:`~jfast_sync.queues.rabbitmq.consumer.Consumer`, and the state both sides share.

    Args:
        server: where the broker is.
        topology: declared again at every connect, so that a queue deleted meanwhile is there again.
        ledger: told of every delivery.
        directory: the named queues there are.
        maker: makes named queues that are to be consumed and do not exist, over ``making``: a connection that
            publishes nothing keeps acknowledging while the broker holds publishers back.
        give_back: stores copies of deliveries nobody claimed; False where it could not.
        linger: seconds without a claim after which the consumers are cancelled.
    """

    def __init__(
        self,
        server: Server,
        topology: Topology,
        ledger: Ledger,
        directory: Directory,
        *,
        maker: Maker,
        making: Publisher,
        give_back: Callable[[Sequence[Delivery]], bool],
        linger: float = 0.2,
    ) -> None:
        self._server = server
        self._topology = topology
        self._ledger = ledger
        self._directory = directory
        directory.on_news = lambda: self._bell.put(False)
        self._maker = maker
        self._making = making
        self._give_back = give_back
        self.linger = linger
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._reset()

    def _reset(self) -> None:
        self._connection: Connection | None = None
        self._subscriptions: Subscriptions | None = None
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._bell: SimpleQueue[bool] = SimpleQueue()
        self._up = threading.Event()
        self._tried = threading.Event()  # set once a connection was made or refused
        self._stop = threading.Event()
        self._error: JFastError | None = None
        self._buffer: deque[Delivery] = deque()
        self._claiming = False
        self._counting = 0
        self._in_hand = 0
        self._claimed_at = -1e9
        self._retiring = False
        self._seek_at = 0.0

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                self._connect()
                failures = 0
                while not self._stop.is_set():
                    self._turn()
            except Exception as exc:
                error = exc if isinstance(exc, JFastError) else UnavailableError(f"RabbitMQ: {error_text(exc)}")
                if not isinstance(exc, JFastError):
                    log.exception("the connection to RabbitMQ is made again")
                elif not failures:
                    log.warning("%s", error)
                if isinstance(exc, MissingError):  # a queue was deleted under us; whoever claims next makes it again
                    self._maker.forget()
                self._lost(error)
                failures += 1
                self._stop.wait(backoff(failures, base=_AGAIN_BASE, cap=_AGAIN_CAP, jitter=0.3))
        self._farewell()

    def _connect(self) -> None:
        connection = Connection(self._server, "consumer")
        try:
            self._maker.setup(connection)
            self._directory.follow(connection)
            self._subscriptions = Subscriptions(connection, self._topology, self._arrived)
        except BaseException:
            connection.close()
            raise
        self._ledger.connected()
        self._connection = connection
        self._error = None
        self._up.set()
        self._tried.set()

    def _lost(self, error: JFastError) -> None:
        self._error = error
        self._up.clear()
        self._tried.set()
        connection, self._connection, self._subscriptions = self._connection, None, None
        self._ledger.lose(self._emptied())
        if connection is not None:
            connection.close()
        with suppress(Empty):
            while True:
                self._orders.get_nowait()[1].set_exception(error)
        self._bell.put(False)

    def _farewell(self) -> None:
        with suppress(JFastError):
            if self._connection is not None:
                self._work_off_orders()
                self._leave(self._connection)
        self._lost(UnavailableError("the queue was closed"))

    def _leave(self, connection: Connection) -> None:
        """Take nothing any more, then give back what was taken: in this order, or it would be handed to us again."""
        assert self._subscriptions is not None
        deadline = Deadline(_LEAVE)
        while self._subscriptions.retire(least=0) and not deadline.passed:
            connection.pump(0.01)
        self._subscriptions.cancel()
        self._subscriptions.barrier()
        self._return_unclaimed()

    def _turn(self) -> None:
        assert self._connection is not None
        assert self._subscriptions is not None
        self._work_off_orders()
        self._arrange()
        self._connection.pump(self._pause())
        self._connection.run_until(lambda: True, Deadline(0))
        self._directory.check()
        self._subscriptions.check()
        if not self._connection.is_open:
            raise UnavailableError(f"RabbitMQ at {self._server.shown}: the connection was lost")

    def _work_off_orders(self) -> None:
        with suppress(Empty):
            while True:
                work, order = self._orders.get_nowait()
                try:
                    order.set_result(work())
                except JFastError as exc:
                    order.set_exception(exc)
                    raise
                except Exception as exc:
                    order.set_exception(exc)

    def _pause(self) -> float:
        """How long nothing has to be done, if nothing arrives."""
        if not self._orders.empty():
            return 0.0
        if self._retiring and not self._claiming:
            return max(self._claimed_at + self.linger - time.monotonic(), 0.01)
        return _SEEK_EVERY if self._ledger.running else 5.0

    @property
    def _active(self) -> bool:
        return self._claiming or time.monotonic() - self._claimed_at < self.linger

    def _arrange(self) -> None:
        """Keep nothing from others that nobody here asks for, and look out for what comes back to us."""
        assert self._subscriptions is not None
        if not self._counting and not self._active:
            self._retiring = self._subscriptions.retire()
            self._return_unclaimed()
        else:
            self._retiring = True
        if time.monotonic() >= self._seek_at and (adrift := self._ledger.adrift()):
            # What runs here has to be recognised when it is handed out again, also while nobody claims.
            self._seek_at = time.monotonic() + _SEEK_EVERY
            self._claimed_at = max(self._claimed_at, time.monotonic())
            for work, count in adrift.items():
                if not self._subscriptions.is_hungry_on((work,)):
                    self._subscriptions.consume(work, count)

    def _return_unclaimed(self) -> None:
        assert self._subscriptions is not None
        surplus = self._emptied()
        if not surplus:
            return
        if self._give_back(surplus):
            for delivery in surplus:
                self._ledger.over(delivery.message_id)
            self._acknowledge(surplus)
        else:
            self._ledger.lose(surplus)
            self._subscriptions.requeue(surplus)

    def _emptied(self) -> list[Delivery]:
        """Take what is buffered, one by one: a claim takes from the other side, and nothing may be had by both."""
        taken: list[Delivery] = []
        with suppress(IndexError):
            while True:
                taken.append(self._buffer.popleft())
        return taken

    def _look(self, limit: int, wait: float, works: frozenset[WorkQueue]) -> int:
        """See what is there and ask for it; return how many deliveries to wait for a little."""
        assert self._subscriptions is not None
        subscriptions = self._subscriptions
        subscriptions.retire(keep=works)
        if not wait and not subscriptions.engaged:
            for work in sorted(works):
                while len(self._buffer) < limit and subscriptions.get(work):
                    pass
            subscriptions.barrier()
            return 0
        counts = subscriptions.counts(works)
        subscriptions.check_fed(counts)
        if subscriptions.is_hungry_on(works):
            return 0
        total = 0
        for work in sorted(works):
            if counts[work] and total < limit:
                if not subscriptions.is_hungry_on((work,)):
                    subscriptions.consume(work, limit)
                total += counts[work]
        return min(total, limit)

    def _watch(self, works: frozenset[WorkQueue]) -> None:
        assert self._subscriptions is not None
        self._subscriptions.watch(works)

    def _barrier(self) -> None:
        assert self._subscriptions is not None
        self._subscriptions.barrier()

    def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        assert self._subscriptions is not None
        self._subscriptions.acknowledge(each for each in deliveries if each.generation == self._ledger.generation)

    def _arrived(self, delivery: Delivery) -> bool:
        """Take a delivery in; return whether it may be acknowledged at once."""
        delivery.generation = self._ledger.generation
        match self._ledger.arrive(delivery):
            case Arrival.NEW:
                self._buffer.append(delivery)
                self._bell.put(False)
            case Arrival.ADOPTED:
                log.info("the message of a job that runs here was handed out again, and recognised")
            case Arrival.OVER:
                return True
        return False
