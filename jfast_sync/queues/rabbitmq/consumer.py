"""Where claims meet deliveries: the caller's side of the consuming connection."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty
from typing import Final, TypeVar

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND
from jfast_sync.queues.rabbitmq.ledger import Delivery
from jfast_sync.queues.rabbitmq.names import WorkQueue
from jfast_sync.queues.rabbitmq.thread import ConsumingThread

__all__ = ["Consumer"]

log = logging.getLogger("jfast_sync.queues.rabbitmq")

T = TypeVar("T")

_GATHER: Final = 0.25  # seconds to wait for the rest of what a look has counted
_GLANCE: Final = 0.02


class Consumer(ConsumingThread):
    """Deliveries for :meth:`RabbitQueue.claim`, and their acknowledgement; any thread may call."""

    def ensure(self) -> None:
        """Start the thread if it does not run, and wait for a connection.

        Raises:
            UnavailableError: there is none; the thread goes on trying.
        """
        with self._starting:
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._reset()
                self._thread = threading.Thread(target=self._run, name="jfast-rabbitmq", daemon=True)
                self._thread.start()
        if not self._up.is_set():
            self._tried.wait(BOUND)
            if not self._up.is_set():
                raise self._error or UnavailableError(f"RabbitMQ at {self._server.shown} does not answer")

    def claim(self, limit: int, wait: float, queues: frozenset[str] | None) -> list[Delivery]:
        """Return up to ``limit`` deliveries, the higher bands first; waits up to ``wait`` seconds for the first."""
        deadline = Deadline(wait)
        woken = self._heard()
        self.ensure()
        self._claiming = True
        try:
            works = self._directory.works(queues)
            found = self._take(limit, works)
            if found or not works or limit <= 0:
                if not found and not woken:
                    self._wait(deadline, lambda: False)
                return found
            self._ensure_queues(works)
            expected = self._call(lambda: self._look(limit, wait, works))
            if expected:
                woken = (
                    self._wait(Deadline(_GATHER if wait else _GLANCE), lambda: len(self._buffer) >= expected) or woken
                )
            found = self._take(limit, works)
            if not found and wait and not woken:
                self._call(partial(self._watch, works))
            while not found and not woken and not deadline.passed:
                woken = self._wait(deadline, partial(self._news, queues, works))
                if (more := self._directory.works(queues)) != works:
                    works = more
                    self._ensure_queues(works)
                    self._call(partial(self._watch, works))
                found = self._take(limit, works)
            return found or self._take(limit, works)
        finally:
            self._claimed_at = time.monotonic()
            self._claiming = False

    def wake(self) -> None:
        """End a waiting claim; re-entrant, for signal handlers."""
        self._bell.put(True)

    def acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge deliveries; what belongs to a channel that is gone is left to the ledger's memory."""
        todo = list(deliveries)
        if todo:
            self._call(lambda: self._acknowledge(todo))

    @property
    def idle(self) -> bool:
        """Whether nothing is held unclaimed, and nobody claims."""
        return not self._claiming and not self._buffer

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Give nothing back meanwhile: what moves while it is counted is counted twice."""
        self._counting += 1
        try:
            yield
        finally:
            self._counting -= 1

    def waiting(self) -> int:
        """Count what was delivered and not claimed, with everything that was on its way when this was called."""
        if self._thread is None or self._pid != os.getpid() or not self._up.is_set():
            return 0
        self._call(self._barrier)
        return len(self._buffer) + self._in_hand

    def take_back(self, deliveries: Iterable[Delivery]) -> None:
        """Keep deliveries that could neither be leased nor stored elsewhere now, as if they had just come."""
        self._buffer.extend(each for each in deliveries if each.generation == self._ledger.generation)

    def passed_on(self) -> None:
        """What the last claim returned is the caller's: leased, or stored elsewhere."""
        self._in_hand = 0

    @property
    def error(self) -> str | None:
        """Why there is no connection now, where one is wanted."""
        return str(self._error) if self._thread is not None and self._error is not None else None

    def close(self) -> None:
        """Stop the thread and close its connection; what it holds goes back."""
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        self._stop.set()
        self._nudge()
        self.wake()
        thread.join(BOUND * 2)
        with self._starting:
            self._thread = None

    # --- the caller's side

    def _call(self, work: Callable[[], T]) -> T:
        """Have the connection's thread do something, and wait for the result."""
        order: Future[T] = Future()
        self._orders.put((work, order))
        self._nudge()
        try:
            return order.result(BOUND * 2)
        except TimeoutError:
            raise UnavailableError(f"RabbitMQ at {self._server.shown} does not answer") from None

    def _ensure_queues(self, works: frozenset[WorkQueue]) -> None:
        if missing := self._maker.missing({work.queue for work in works}):
            self._making.use(lambda connection: self._maker.ensure(connection, missing))

    def _nudge(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(Exception):  # it may be closing right now
                connection.call_soon(lambda: None)

    def _take(self, limit: int, works: frozenset[WorkQueue]) -> list[Delivery]:
        mine = sorted((each for each in list(self._buffer) if each.work in works), key=lambda each: each.work.band)
        taken = []
        self._in_hand = len(mine[:limit])  # before it leaves the buffer: whoever counts must not miss it
        for delivery in mine[:limit]:
            with suppress(ValueError):  # the thread has given it back, or lost it
                self._buffer.remove(delivery)
                taken.append(delivery)
        return taken

    def _news(self, queues: frozenset[str] | None, works: frozenset[WorkQueue]) -> bool:
        return bool(self._buffer) or self._directory.works(queues) != works

    def _heard(self) -> bool:
        woken = False
        with suppress(Empty):
            while True:
                woken = self._bell.get_nowait() or woken
        return woken

    def _wait(self, deadline: Deadline, done: Callable[[], bool]) -> bool:
        """Wait for ``done``, checked at every ring; return whether :meth:`wake` was called."""
        while not done() and not deadline.passed:
            if not self._up.is_set() or self._stop.is_set():
                raise self._error or UnavailableError("the connection to RabbitMQ was lost")
            with suppress(Empty):
                if self._bell.get(timeout=deadline.remaining(5.0)):
                    return True
        return False
