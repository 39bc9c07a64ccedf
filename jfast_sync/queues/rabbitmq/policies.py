"""Policies win over what a queue was declared with, and AMQP shows none of them: what can be tried is tried.

Trial queues, named like those of the topology so that the patterns of policies match them too, are declared as those
are, and made to show how they behave. They are gone afterwards, also where the process dies meanwhile.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from pika import spec

from jfast_sync.errors import JFastError
from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import Channel, Connection, Server
from jfast_sync.queues.rabbitmq.names import WorkQueue
from jfast_sync.queues.rabbitmq.topology import Topology

__all__ = ["Policies"]

_BOUND: Final = 0.7  # seconds for a trial: /ready waits for it
_EVERY: Final = 600.0  # seconds between two trials
_AGAIN: Final = 20.0  # seconds after one that came to no end
_OVER: Final = 10  # messages put into a trial queue that holds one
_DELIVERIES: Final = 21  # one more than the limit a policy usually sets
_EXPIRES_MS: Final = 60_000


class Policies:
    """What trial queues have shown of the policies on a topology's names.

    Args:
        server: where the broker is; a trial has a connection of its own, since an alarm holds back what publishes.
        topology: whose names and arguments are tried.
    """

    def __init__(self, server: Server, topology: Topology) -> None:
        self._server = server
        self._topology = topology
        self.try_at = 0.0  # monotonic
        self._warnings: tuple[str, ...] = ()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a trial: at first, then every ten minutes."""
        return time.monotonic() >= self.try_at

    def warnings(self) -> tuple[str, ...]:
        """Return what overrides the declarations, as far as it shows; tries where that is due."""
        if self.is_due:
            self.look(_BOUND)
        return self._warnings

    def look(self, seconds: float) -> bool:
        """Try now, for at most about so many seconds; return whether the trial came to an end.

        One that is too slow, meets an alarm or may not make queues leaves what was known before.
        """
        try:
            self._warnings = self._tried(Deadline(seconds))
        except JFastError:
            self.try_at = time.monotonic() + _AGAIN
            return False
        self.try_at = time.monotonic() + _EVERY
        return True

    def how_to_look(self) -> str:
        """Return what no trial shows, and the operator's command that does."""
        prefix, vhost = self._topology.names.prefix, self._server.vhost
        return (
            "AMQP shows no policies, and no trial shows message-ttl, expires or max-length, nor a pattern that matches "
            f"one name only. None may be set on {prefix} and {prefix}.*; to see them: "
            f"rabbitmqctl list_policies -p {vhost}; rabbitmqctl list_operator_policies -p {vhost}"
        )

    def _tried(self, deadline: Deadline) -> tuple[str, ...]:
        if self._topology.queue_type == "classic":
            return ()  # there, what is tried here cannot be overridden
        names, number = self._topology.names, secrets.randbelow(10**9) + 1000
        connection = Connection(self._server, "policies")
        try:
            found = [
                *_try(connection, names.level(number), f"{names.prefix}.delay.*", self._arguments, deadline),
                *_try(connection, names.work(WorkQueue(1, f"try{number}")), names.prefix, self._arguments, deadline),
            ]
        finally:
            connection.close()
        return tuple(found)

    @property
    def _arguments(self) -> dict[str, Any]:
        return {**self._topology.arguments(), "x-max-length": 1, "x-expires": _EXPIRES_MS}


def _try(connection: Connection, queue: str, shown: str, arguments: dict[str, Any], deadline: Deadline) -> list[str]:
    channel = connection.channel(deadline)
    confirms: list[Any] = []
    channel.call("confirm_delivery", deadline, ack_nack_callback=confirms.append)
    channel.call("queue_declare", deadline, queue=queue, durable=True, arguments=arguments)
    found = []
    if not _refuses(connection, channel, queue, confirms, deadline):
        found.append(
            f"a policy on {shown} overrides overflow = reject-publish: jobs are lost when the broker restarts, or when "
            f"a queue is full; find it by `rabbitmqctl list_policies` or `list_operator_policies`"
        )
    elif (times := _handed_out(channel, queue, deadline)) < _DELIVERIES:
        found.append(
            f"a policy on {shown} sets delivery-limit: a message is deleted after {times} deliveries, and reading dead "
            f"letters counts as one; find it by `rabbitmqctl list_policies` or `list_operator_policies`"
        )
    channel.call("queue_delete", deadline, queue=queue)
    channel.close()
    return found


def _refuses(connection: Connection, channel: Channel, queue: str, confirms: list[Any], deadline: Deadline) -> bool:
    """Whether a full queue refuses what is published; it takes a moment to notice that it is full."""
    for number in range(_OVER):
        channel.amqp.basic_publish("", queue, b"")
        channel.wait(lambda: len(confirms) > number, deadline)  # noqa: B023
        if confirms[-1].method.NAME == spec.Basic.Nack.NAME:
            return True
        connection.pump(0.02)
    return False


def _handed_out(channel: Channel, queue: str, deadline: Deadline) -> int:
    """Return how often one message is handed out again, up to what is tried."""
    answers: list[int | None] = []
    amqp = channel.amqp
    amqp.add_callback(lambda _frame: answers.append(None), [spec.Basic.GetEmpty], False)
    for times in range(_DELIVERIES):
        amqp.basic_get(queue, callback=lambda _channel, method, *_rest: answers.append(method.delivery_tag))
        channel.wait(lambda: len(answers) > times, deadline)  # noqa: B023
        if (tag := answers[-1]) is None:
            return times
        amqp.basic_nack(tag, requeue=True)
    return _DELIVERIES
