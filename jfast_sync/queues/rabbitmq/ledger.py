"""What this process holds: deliveries, the leases on them, and what it remembers of those that are over.

A delivery ends with its channel, a job does not. When a connection is lost the broker hands out again what was
unacknowledged; a process that lives recognises its own by the message's id: a running job is adopted under its token, a
finished one is acknowledged at once, one that merely waited here has not lapsed. Nothing here talks to the broker.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from jfast_sync.job import Lease
from jfast_sync.queues.rabbitmq.message import Stored
from jfast_sync.queues.rabbitmq.names import WorkQueue
from jfast_sync.queues.rabbitmq.publisher import new_message_id

__all__ = ["Arrival", "Delivery", "Held", "Ledger", "Standing"]

_REMEMBERED: Final = 100_000
_LATE: Final = 10.0


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One message handed to this process; ``tag`` means something on the channel of its ``generation`` only.

    ``counted`` is how often the broker had handed it out before, ``forgiven`` how many of those were ours and no start.
    """

    generation: int
    tag: int
    consumer: str
    work: WorkQueue
    message_id: str
    body: bytes
    counted: int = 0
    forgiven: int = 0
    again: bool = False
    arrived: float = 0.0

    @property
    def lapses(self) -> int:
        return max(self.counted - self.forgiven, 0)


@dataclass(slots=True)
class Held:
    """A lease of this process, and the delivery it stands on.

    ``copy_id`` is the message id of whatever replaces it, drawn once: a second try is recognised as the same copy.
    """

    delivery: Delivery
    lease: Lease
    lapsed: int
    copy_id: str

    @property
    def stored(self) -> Stored:
        """The job as it was delivered, decoded afresh: what a handler did to its payload is not stored."""
        return Stored.from_body(self.delivery.body).lapsed(self.lapsed)


class Arrival(Enum):
    """What a delivery is to this process."""

    NEW = "new"
    ADOPTED = "adopted"  # it is the message of a job that runs here
    OVER = "over"  # what it asked for was done here, or is being done on another delivery of it


class Standing(Enum):
    """How a lease stands."""

    CURRENT = "current"
    ADRIFT = "adrift"  # its connection was lost, and the broker has not handed the message out again yet
    GONE = "gone"


class Ledger:
    """Leases and deliveries of one process; from any thread.

    Args:
        patience: seconds after a reconnect for which a job whose message has not come back is still taken for ours.
        clock: monotonic seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}  # by token
        self._tokens: dict[str, str] = {}  # by message id
        self._over: OrderedDict[str, None] = OrderedDict()
        self._waited: OrderedDict[str, int] = OrderedDict()  # message id -> deliveries that were no start
        self._connected_at = clock()
        self.generation = 0

    def lose(self, waiting: Iterable[Delivery]) -> None:
        """The channel is gone, and with it every delivery; ``waiting`` are those that nobody had claimed."""
        with self._lock:
            for delivery in waiting:
                self._remember(self._waited, delivery.message_id, delivery.forgiven + 1)

    def connected(self) -> int:
        """A new channel stands; return its generation."""
        with self._lock:
            self.generation += 1
            self._connected_at = self._clock()
            return self.generation

    def arrive(self, delivery: Delivery) -> Arrival:
        """Take notice of a delivery."""
        with self._lock:
            known = self._known(delivery)
            if known is Arrival.NEW:
                delivery.forgiven = self._waited.pop(delivery.message_id, 0)
            return known

    def still_new(self, delivery: Delivery) -> Arrival:
        """Say what a delivery is by the time it is claimed: two copies of one message may have waited side by side."""
        with self._lock:
            return self._known(delivery)

    def _known(self, delivery: Delivery) -> Arrival:
        token = self._tokens.get(delivery.message_id)
        if token is None:
            return Arrival.OVER if delivery.message_id in self._over else Arrival.NEW
        held = self._held[token]
        if held.delivery.generation == delivery.generation:
            return Arrival.OVER  # the same message twice: published twice, or moved on twice by the broker
        held.delivery = delivery
        return Arrival.ADOPTED

    def lease(self, delivery: Delivery, stored: Stored, now: datetime) -> Lease:
        """Turn a delivery into a lease."""
        token = secrets.token_hex(16)
        lapsed = delivery.lapses
        lease = stored.lapsed(lapsed).lease(token, now)
        with self._lock:
            self._held[token] = Held(delivery, lease, lapsed, new_message_id())
            self._tokens[delivery.message_id] = token
        return lease

    def find(self, lease: Lease) -> tuple[Standing, Held | None]:
        """Say how a lease stands."""
        with self._lock:
            held = self._held.get(lease.token)
            if held is None or held.lease.job.id != lease.job.id:
                return Standing.GONE, None
            if held.delivery.generation == self.generation:
                return Standing.CURRENT, held
            if self._clock() - self._connected_at < self._patience:
                return Standing.ADRIFT, held
            return Standing.GONE, held

    def is_late(self, held: Held) -> bool:
        """Whether a message should have come back by now, for whoever has its outcome in hand."""
        return self._clock() - self._connected_at >= _LATE and held.delivery.generation != self.generation

    def finish(self, held: Held) -> None:
        """The lease is over: nothing is to be done about its message any more but to acknowledge it."""
        with self._lock:
            self._drop(held)
            self.over(held.delivery.message_id)

    def forget(self, held: Held) -> None:
        """The lease is over, and its message is another worker's."""
        with self._lock:
            self._drop(held)

    def over(self, message_id: str) -> None:
        """Acknowledge this message if it ever comes again."""
        self._remember(self._over, message_id, None)

    @property
    def running(self) -> int:
        """How many leases are held."""
        return len(self._held)

    def adrift(self) -> dict[WorkQueue, int]:
        """Where messages have to come back from, and how many."""
        found: dict[WorkQueue, int] = {}
        with self._lock:
            if self._clock() - self._connected_at < self._patience:
                for held in self._held.values():
                    if held.delivery.generation != self.generation:
                        found[held.delivery.work] = found.get(held.delivery.work, 0) + 1
        return found

    def _drop(self, held: Held) -> None:
        self._held.pop(held.lease.token, None)
        self._tokens.pop(held.delivery.message_id, None)

    @staticmethod
    def _remember(memory: OrderedDict[str, Any], key: str, value: Any) -> None:
        memory[key] = value
        memory.move_to_end(key)
        while len(memory) > _REMEMBERED:
            memory.popitem(last=False)
