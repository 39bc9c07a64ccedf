"""Counting over plain AMQP: a passive declaration tells how many messages of a queue are ready, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jfast_sync.loop import Deadline
from jfast_sync.queues.rabbitmq.connection import BOUND, Connection
from jfast_sync.queues.rabbitmq.directory import Directory
from jfast_sync.queues.rabbitmq.topology import Topology

__all__ = ["Counts", "Found"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a broker tells about a topology."""

    ready: int
    delayed: int
    dead: int
    warnings: tuple[str, ...]


class Counts:
    """Counts every queue of a topology, all questions ahead of the answers."""

    def __init__(self, topology: Topology, directory: Directory) -> None:
        self._topology = topology
        self._directory = directory

    def read(self, connection: Connection) -> Found:
        """Count.

        Raises:
            MissingError: somebody has deleted a queue.
        """
        names = self._topology.names
        levels = [names.level(number) for number in range(self._topology.cascade.levels)]
        fixed = [*levels, names.dead, names.lost]
        self._directory.catch_up(connection)
        works = [names.work(work) for work in sorted(self._directory.works(None))]
        counts = _counted(connection, [*fixed, *works])
        lost = counts[len(levels) + 1]
        warning = (
            f"{lost} messages in {names.lost} could not be routed: their queue did not exist when they were due; "
            "a running worker puts them back"
        )
        return Found(
            ready=sum(counts[len(fixed) :]),
            delayed=sum(counts[: len(levels)]),
            dead=counts[len(levels)],
            warnings=(warning,) if lost else (),
        )


def _counted(connection: Connection, queues: list[str]) -> list[int]:
    deadline = Deadline(BOUND)
    channel = connection.channel(deadline)
    answers: list[Any] = []
    for queue in queues:
        channel.amqp.queue_declare(queue, passive=True, callback=answers.append)
    channel.wait(lambda: len(answers) == len(queues), deadline)
    channel.close()
    return [answer.method.message_count for answer in answers]
