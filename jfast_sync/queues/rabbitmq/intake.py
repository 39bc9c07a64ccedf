"""What becomes of deliveries: a lease, or a message somewhere else where they cannot start now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from jfast_sync.errors import PayloadError, UnavailableError
from jfast_sync.job import Lease
from jfast_sync.queues.rabbitmq.ledger import Arrival, Delivery, Ledger
from jfast_sync.queues.rabbitmq.message import Stored, milliseconds
from jfast_sync.queues.rabbitmq.publisher import Message, new_message_id
from jfast_sync.queues.rabbitmq.routing import Routing

__all__ = ["Intake"]


class Intake:
    """Looks at deliveries.

    Args:
        routing: builds what is stored elsewhere.
        ledger: turns deliveries into leases.
        store: stores messages, confirmed.
        acknowledge: acknowledges deliveries whose messages are stored elsewhere.
        take_back: keeps deliveries whose messages could not be stored, for another try.
    """

    def __init__(
        self,
        routing: Routing,
        ledger: Ledger,
        *,
        store: Callable[[Sequence[Message]], None],
        acknowledge: Callable[[Sequence[Delivery]], None],
        take_back: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._routing = routing
        self._ledger = ledger
        self._store = store
        self._acknowledge = acknowledge
        self._take_back = take_back

    def leases(self, deliveries: Sequence[Delivery]) -> list[Lease]:
        """Turn deliveries into leases; what cannot start now is stored elsewhere, then acknowledged."""
        now = datetime.now(UTC)
        leases: list[Lease] = []
        elsewhere: list[tuple[Delivery, Message]] = []
        over: list[Delivery] = []
        for delivery in deliveries:
            if (known := self._ledger.still_new(delivery)) is not Arrival.NEW:
                over += [delivery] if known is Arrival.OVER else []
                continue
            try:
                stored = Stored.from_body(delivery.body)
            except PayloadError as exc:
                elsewhere.append((delivery, self._routing.undecodable(delivery.body, str(exc), now)))
                continue
            instead = self._instead(delivery, stored, now)
            if instead is not None:
                elsewhere.append((delivery, instead))
            else:
                leases.append(self._ledger.lease(delivery, stored, now))
        if over:
            self._acknowledge(over)
        try:
            self._put_elsewhere(elsewhere)
        except UnavailableError:
            if not leases:
                raise
        return leases

    def _instead(self, delivery: Delivery, stored: Stored, now: datetime) -> Message | None:
        if stored.due_ms is not None:
            early = stored.due_ms - milliseconds(now)
            if early > 0:
                due = datetime.fromtimestamp(stored.due_ms / 1000, UTC)
                return self._routing.due(stored, due, now, new_message_id())
        if self._routing.topology.queue_type == "classic" and delivery.again and not delivery.forgiven:
            # A classic queue does not count: the lapse is written down before the job starts again, or never ends.
            return self._routing.again(delivery, stored.lapsed(1))
        return None

    def _put_elsewhere(self, moves: Sequence[tuple[Delivery, Message]]) -> None:
        if not moves:
            return
        try:
            self._store([message for _, message in moves])
        finally:
            stored = [delivery for delivery, message in moves if message.stored]
            for delivery in stored:
                self._ledger.over(delivery.message_id)
            self._acknowledge(stored)
            self._take_back([delivery for delivery, message in moves if not message.stored])

    def copies(self, deliveries: Sequence[Delivery]) -> list[Message]:
        """Return copies of what nobody claimed, with the lapses that the broker has counted."""
        return [self._routing.again(each, self._counted(each)) for each in deliveries]

    @staticmethod
    def _counted(delivery: Delivery) -> Stored | None:
        try:
            return Stored.from_body(delivery.body).lapsed(delivery.lapses)
        except PayloadError:
            return None
