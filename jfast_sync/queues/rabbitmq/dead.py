"""Dead letters over plain AMQP: read by holding them all for a moment, given back by closing the channel.

Closing gives them back in no time and in the order of a classic queue; handing back 10,000 by `basic.nack` freezes the
queue for many seconds. Order comes from the time of death in the body, never from the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from jfast_sync.errors import PayloadError, UnavailableError
from jfast_sync.job import DeadJob
from jfast_sync.loop import Deadline
from jfast_sync.ports import DeadFilter
from jfast_sync.queues.rabbitmq.connection import BOUND, Channel, Connection, Server, failure
from jfast_sync.queues.rabbitmq.message import Stored, dead_job
from jfast_sync.queues.rabbitmq.publisher import Publisher
from jfast_sync.queues.rabbitmq.routing import Routing

__all__ = ["Graveyard"]

_LISTED: Final = 10_000
_SCANNED: Final = 65_000  # a prefetch is a 16-bit number
_BATCH: Final = 500
_HELD_ELSEWHERE: Final = 2.0  # seconds to wait for what another reader holds just now


@dataclass(slots=True)
class _Letter:
    tag: int
    body: bytes
    dead: DeadJob
    gone: bool = False


class Graveyard:
    """The dead queue; every operation has a connection of its own."""

    def __init__(self, server: Server, routing: Routing, publisher: Publisher) -> None:
        self._server = server
        self._routing = routing
        self._publisher = publisher

    def letters(self, where: DeadFilter, limit: int, after: str | None) -> list[DeadJob]:
        """List newest first."""
        with self._held(_LISTED) as (_, letters):
            found = sorted((each.dead for each in letters), key=_newest_first, reverse=True)
        if after is not None:
            places = [place for place, letter in enumerate(found) if letter.job.id == after]
            found = found[places[-1] + 1 :] if places else []
        return [letter for letter in found if _matches(letter, where)][:limit]

    def find(self, job_id: str) -> DeadJob | None:
        """Return the newest with this id."""
        with self._held(_LISTED) as (_, letters):
            found = [each.dead for each in letters if each.dead.job.id == job_id]
        return max(found, key=_newest_first, default=None)

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Put back what has one of these ids."""
        wanted = set(ids)
        return _once(self._move(lambda letter: letter.job.id in wanted, self._replay)) if wanted else []

    def revive_where(self, where: DeadFilter) -> int:
        """Put back what matches."""
        return len(self._move(lambda letter: _matches(letter, where), self._replay))

    def discard(self, ids: Sequence[str]) -> list[str]:
        """Throw away what has one of these ids."""
        wanted = set(ids)
        return _once(self._move(lambda letter: letter.job.id in wanted, lambda _letters: None)) if wanted else []

    def _move(self, chosen: Callable[[DeadJob], bool], first: Callable[[Sequence[_Letter]], None]) -> list[str]:
        """Do something with the chosen ones, then acknowledge them, in batches; return their ids."""
        moved: list[str] = []
        with self._held(_SCANNED) as (channel, letters):
            todo = [each for each in letters if chosen(each.dead)]
            todo.sort(key=lambda each: _newest_first(each.dead))
            for start in range(0, len(todo), _BATCH):
                batch = todo[start : start + _BATCH]
                first(batch)
                for letter in batch:
                    channel.amqp.basic_ack(letter.tag)
                    letter.gone = True
                moved += [letter.dead.job.id for letter in batch]
            if todo:
                # Acknowledgements have no answer; the next one says that they were read.
                channel.call("basic_qos", Deadline(BOUND), prefetch_count=1)
        return moved

    def _replay(self, letters: Sequence[_Letter]) -> None:
        now = datetime.now(UTC)
        self._publisher.publish([self._routing.revived(each.body, _stored(each.body), now) for each in letters])

    @contextmanager
    def _held(self, most: int) -> Iterator[tuple[Channel, list[_Letter]]]:
        """Hold what is in the dead queue; closing the connection gives back what was not acknowledged."""
        connection = Connection(self._server, "dead letters")
        try:
            channel = connection.channel(Deadline(BOUND))
            letters = self._read(channel, most)
            yield channel, letters
            self._give_back(connection, channel, sum(not each.gone for each in letters))
        finally:
            connection.close()

    def _give_back(self, connection: Connection, channel: Channel, count: int) -> None:
        """Close the channel, and wait until what it held is there again: the next reader must not find nothing."""
        channel.close()
        asking, deadline = connection.channel(Deadline(BOUND)), Deadline(_HELD_ELSEWHERE)
        while self._count(asking) < count and not deadline.passed:
            connection.pump(0.005)

    def _count(self, channel: Channel) -> int:
        name = self._routing.topology.names.dead
        return int(channel.call("queue_declare", Deadline(BOUND), queue=name, passive=True).message_count)

    def _read(self, channel: Channel, most: int) -> list[_Letter]:
        name = self._routing.topology.names.dead
        count = min(self._count(channel), most)
        if not count:
            return []
        letters: list[_Letter] = []

        def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            message_id = properties.message_id or f"message-{method.delivery_tag}"
            letters.append(_Letter(method.delivery_tag, body, dead_job(body, properties.headers, message_id)))

        channel.call("basic_qos", Deadline(BOUND), prefetch_count=count)
        channel.amqp.basic_consume(name, take)
        seen = -1
        while len(letters) < count and len(letters) > seen:
            seen = len(letters)
            with suppress(UnavailableError):  # what another reader holds just now does not come
                channel.wait(partial(_more, letters, seen), Deadline(_HELD_ELSEWHERE))
        if channel.error is not None:
            raise failure(channel.error, self._server)
        return letters


def _more(letters: Sequence[_Letter], than: int) -> bool:
    return len(letters) > than


def _matches(letter: DeadJob, where: DeadFilter) -> bool:
    return (
        (where.task is None or letter.job.task == where.task)
        and (where.tenant_id is None or letter.job.tenant_id == where.tenant_id)
        and (where.since is None or letter.died_at >= where.since)
    )


def _newest_first(letter: DeadJob) -> tuple[datetime, str]:
    return letter.died_at, letter.job.id


def _stored(body: bytes) -> Stored | None:
    try:
        return Stored.from_body(body)
    except PayloadError:
        return None


def _once(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(ids))
