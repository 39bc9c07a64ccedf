"""The queue in RabbitMQ: the :class:`~jfast_sync.ports.Queue` port over consumers, confirms and the cascade.

A lease is an unacknowledged delivery: it lasts as long as the connection does, and the broker itself hands the message
to somebody else when that ends. What replaces a message is always stored, confirmed, before the message is
acknowledged: a crash in between makes two of it, never none.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from jfast_sync.errors import JFastError, UnavailableError, UnsupportedError
from jfast_sync.job import Job, Lease
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Done, Settlement
from jfast_sync.ports import Held, Selection, Settled, Stats
from jfast_sync.queues.rabbitmq import ledger as ledgers
from jfast_sync.queues.rabbitmq.cascade import DEFAULT, Cascade
from jfast_sync.queues.rabbitmq.connection import MissingError, Server
from jfast_sync.queues.rabbitmq.consumer import Consumer
from jfast_sync.queues.rabbitmq.counts import Counts, Found
from jfast_sync.queues.rabbitmq.dead import Graveyard, KeepsDeadLetters
from jfast_sync.queues.rabbitmq.directory import Directory
from jfast_sync.queues.rabbitmq.intake import Intake
from jfast_sync.queues.rabbitmq.ledger import Delivery, Ledger, Standing
from jfast_sync.queues.rabbitmq.lost import Lost
from jfast_sync.queues.rabbitmq.making import Maker
from jfast_sync.queues.rabbitmq.names import Names
from jfast_sync.queues.rabbitmq.policies import Policies
from jfast_sync.queues.rabbitmq.publisher import Message, Publisher
from jfast_sync.queues.rabbitmq.routing import Routing
from jfast_sync.queues.rabbitmq.topology import Topology

__all__ = ["RabbitQueue"]

log = logging.getLogger("jfast_sync.queues.rabbitmq")


class RabbitQueue(KeepsDeadLetters):
    """Jobs in RabbitMQ.

    Args:
        server: where the broker is, and how to sign in.
        name: the configured name; ``_`` becomes ``.`` in the broker.
        queue_type: "quorum", or "classic", which is faster and loses confirmed jobs when the broker is killed.
        visibility_timeout: seconds for which a job is still taken for this worker's after a lost connection.
        cascade: levels and unit of the delays; frozen once declared.
    """

    backend: str = "rabbitmq"

    def __init__(
        self,
        server: Server,
        *,
        name: str = "jfast_jobs",
        queue_type: str = "quorum",
        visibility_timeout: float = 60.0,
        cascade: Cascade = DEFAULT,
    ) -> None:
        names = Names.of(name)
        self.topology = Topology(names, queue_type, cascade)
        self._routing = Routing(self.topology)
        self._directory = Directory(names)
        self._maker = Maker(self.topology, self._directory)
        self._ledger = Ledger(max(visibility_timeout, 10.0))
        self._enqueuing = Publisher(server, "enqueue", self._maker.repair)
        self._settling = Publisher(server, "settle", self._maker.repair)
        self._returning = Publisher(server, "return", self._maker.repair)
        self._asking = Publisher(server, "ask", self._maker.repair)  # publishes nothing: an alarm does not stop it
        self.consumer = Consumer(
            server,
            self.topology,
            self._ledger,
            self._directory,
            maker=self._maker,
            making=self._returning,
            give_back=self._give_back,
        )
        self._intake = Intake(
            self._routing,
            self._ledger,
            store=lambda messages: self._publish(self._settling, messages),
            acknowledge=self._acknowledge,
            take_back=self.consumer.take_back,
        )
        self._graveyard = Graveyard(server, self._routing, self._settling)
        self._lost = Lost(
            self._routing,
            publish=lambda messages: self._publish(self._returning, messages),
            suspect=self._maker.forget,
        )
        self._counts = Counts(self.topology, self._directory)
        self.policies = Policies(server, self.topology)
        self._counters = threading.Lock()
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def setup(self) -> None:
        """Declare every exchange and queue; idempotent, safe when many processes start together.

        Raises:
            SchemaError: a queue of the name is there with other arguments, or the broker is too old.
        """
        self._maker.forget()
        self._asking.use(self._maker.setup)

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        """Store jobs, confirmed by the broker; return their ids.

        A broker cannot look an id up: one that is enqueued twice is two messages. The time counts from this machine's
        clock, since a broker tells none.
        """
        now = datetime.now(UTC)
        messages = [self._routing.enqueued(job, now) for job in jobs]
        if messages:
            self._publish(self._enqueuing, messages)
        return [job.id for job in jobs]

    def claim(self, limit: int, wait: float, selection: Selection) -> list[Lease]:
        """Take up to ``limit`` jobs, the higher bands first; waits up to ``wait`` seconds for the first one.

        Raises:
            UnsupportedError: the selection names tasks; a broker hands out whatever is next.
        """
        if selection.tasks is not None:
            raise UnsupportedError(
                'RabbitMQ hands out whatever is next: [plugin.queue] claim = "registered" works on SQL queues only; '
                "give such tasks a queue of their own and start the worker with --queues"
            )
        deadline = Deadline(wait)
        while True:
            deliveries = self.consumer.claim(limit, deadline.remaining(), selection.queues)
            try:
                leases = self._intake.leases(deliveries)
            finally:
                self.consumer.passed_on()
            if leases or not deliveries:
                return leases

    def wake(self) -> None:
        """End a waiting claim at once; from any thread, from a signal handler too."""
        self.consumer.wake()

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes: what replaces a message is stored and confirmed, then the message acknowledged.

        BUSY where the connection was lost and the message has not come back yet, or where the broker did not confirm.
        """
        if not settlements:
            return []
        self.consumer.ensure()
        now = datetime.now(UTC)
        answers: list[Settled] = []
        writing: list[tuple[int, ledgers.Held, Message | None]] = []
        seen: set[str] = set()
        for place, settlement in enumerate(settlements):
            standing, held = self._ledger.find(settlement.lease)
            if held is None or settlement.lease.token in seen:
                answers.append(Settled.REFUSED)
            elif standing is Standing.CURRENT:
                seen.add(settlement.lease.token)
                answers.append(Settled.APPLIED)
                writing.append((place, held, self._routing.outcome(held, settlement.outcome, now)))
            else:
                answers.append(self._adrift(held, settlement, standing))
        self._store([message for _, _, message in writing if message is not None])
        ended = []
        for place, held, message in writing:
            if message is None or message.stored:
                self._ledger.finish(held)
                ended.append(held.delivery)
            else:
                answers[place] = Settled.BUSY
        self._acknowledge(ended)
        return answers

    def extend(self, leases: Sequence[Lease]) -> list[Held]:
        """Say whether leases are still this process's; there is no clock to renew, the connection is the lease."""
        if leases:
            self.consumer.ensure()
        answer = {Standing.CURRENT: Held.YES, Standing.ADRIFT: Held.BUSY, Standing.GONE: Held.LOST}
        return [answer[self._ledger.find(lease)[0]] for lease in leases]

    def recover(self) -> int:
        """Put back what the broker could not route; what a dead worker held it hands out again by itself.

        Returns 0: no lease had lapsed.
        """
        self.consumer.ensure()
        if self._lost.is_due:
            try:
                self._asking.use(self._lost.put_back)
            except MissingError:
                self.setup()
        return 0

    def record(self, done: Mapping[str, int], failed: Mapping[str, int]) -> None:
        """Add to this process's counters; a broker keeps none."""
        self.consumer.ensure()
        with self._counters:
            self._done.update(done)
            self._failed.update(failed)

    def stats(self) -> Stats:
        """Count what is ready, delayed and dead; ``running`` and the counters are this process's own.

        Raises:
            SchemaError: a queue of the name is there with other arguments; looked at once.
        """
        with self.consumer.standing_still():
            before = self.consumer.waiting()
            found = self._counted_now()
            waiting = max(before, self.consumer.waiting())
        if not self._maker.declared:
            self._asking.use(self._maker.setup)  # somebody may have made queues that are not what is needed
        warnings = [*found.warnings, *self.policies.warnings()]
        if (blocked := self._enqueuing.blocked or self._settling.blocked) is not None:
            warnings.append(f"RabbitMQ holds back publishers: {blocked}")
        if (error := self.consumer.error) is not None:
            warnings.append(f"not consuming: {error}")
        with self._counters:
            done, failed = dict(self._done), dict(self._failed)
        return Stats(
            ready=found.ready + waiting,
            delayed=found.delayed,
            running=self._ledger.running,
            dead=found.dead,
            done_by_task=done,
            failed_by_task=failed,
            warnings=warnings,
        )

    def erase(self) -> None:
        """Delete every queue and exchange of this name, with whatever is in them; for demos and tests."""
        self._asking.use(lambda connection: self.topology.erase(connection, self._directory.known()))

    def close(self) -> None:
        """Let go of every connection; what was held and not settled goes back."""
        self.consumer.close()
        for publisher in (self._enqueuing, self._settling, self._returning, self._asking):
            publisher.close()

    def _counted_now(self) -> Found:
        found: list[Found] = []
        try:
            self._asking.use(lambda connection: found.append(self._counts.read(connection)))
        except MissingError:  # somebody has deleted a queue: it is made again by whoever uses it next
            self.setup()
            self._asking.use(lambda connection: self._maker.ensure(connection, set(self._directory.known())))
            self._asking.use(lambda connection: found.append(self._counts.read(connection)))
        return found[-1]

    def _publish(self, publisher: Publisher, messages: Sequence[Message]) -> None:
        # Straight to a queue that is missing, a message comes back; out of the cascade it would end among the lost.
        delayed = {message.queue for message in messages if message.exchange and message.queue is not None}
        if missing := self._maker.missing(delayed):
            publisher.use(lambda connection: self._maker.ensure(connection, missing))
        publisher.publish(messages)

    def _store(self, messages: Sequence[Message]) -> None:
        """Publish what replaces messages; raises only where not one of them was stored."""
        if not messages:
            return
        try:
            self._publish(self._settling, messages)
        except JFastError:
            if not any(message.stored for message in messages):
                raise

    def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        try:
            self.consumer.acknowledge(deliveries)
        except UnavailableError:
            log.debug("%d acknowledgements were lost; the messages are recognised when they come back", len(deliveries))

    def _adrift(self, held: ledgers.Held, settlement: Settlement, standing: Standing) -> Settled:
        """The message of a lease has not come back since its connection was lost."""
        if standing is Standing.ADRIFT and not self._ledger.is_late(held):
            return Settled.BUSY
        if isinstance(settlement.outcome, Done):
            self._ledger.finish(held)
        else:
            self._ledger.forget(held)
        return Settled.REFUSED

    def _give_back(self, deliveries: Sequence[Delivery]) -> bool:
        """Store copies of what nobody claimed; called by the connection's thread."""
        try:
            self._returning.publish(self._intake.copies(deliveries))
        except JFastError as exc:
            log.warning("%d deliveries are handed back uncounted: %s", len(deliveries), exc)
            return False
        return True
