"""Dead letters over plain AMQP: read by holding them all for a moment.

Order comes from the time of death in the body, never from the queue, which a quorum queue scrambles at every reading.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from jfast_sync.errors import PayloadError
from jfast_sync.job import DeadJob
from jfast_sync.ports import DeadFilter
from jfast_sync.queues.rabbitmq.connection import Connection, Server
from jfast_sync.queues.rabbitmq.holding import HeldMessage, Holding, holding
from jfast_sync.queues.rabbitmq.message import Stored, dead_job
from jfast_sync.queues.rabbitmq.publisher import Publisher
from jfast_sync.queues.rabbitmq.routing import Routing

__all__ = ["Graveyard", "KeepsDeadLetters"]

_BATCH: Final = 500
_PLACES: Final = 100  # ends of pages that are remembered

_Place = tuple[datetime, str]  # when it died, and its id: the order of listings


@dataclass(frozen=True, slots=True)
class _Letter:
    dead: DeadJob
    message: HeldMessage

    @property
    def place(self) -> _Place:
        return self.dead.died_at, self.dead.job.id


class Graveyard:
    """The dead queue; every operation has a connection of its own."""

    def __init__(self, server: Server, routing: Routing, publisher: Publisher) -> None:
        self._server = server
        self._routing = routing
        self._publisher = publisher
        self._ends: OrderedDict[str, _Place] = OrderedDict()  # the last letter of pages that were shown

    def letters(self, where: DeadFilter, limit: int, after: str | None) -> list[DeadJob]:
        """List newest first; of all there are, only a page is kept in memory."""
        before = self._place_of(after) if after is not None else None
        if limit <= 0 or (after is not None and before is None):
            return []
        page: list[tuple[_Place, int, DeadJob]] = []

        def see(letter: _Letter) -> None:
            if _matches(letter.dead, where) and (before is None or letter.place < before):
                heapq.heappush(page, (letter.place, letter.message.tag, letter.dead))
            if len(page) > limit:
                heapq.heappop(page)

        with self._held(see):
            pass
        found = [letter for _, _, letter in sorted(page, reverse=True)]
        if found:
            self._remember(found[-1])
        return found

    def find(self, job_id: str) -> DeadJob | None:
        """Return the newest with this id."""
        found: list[DeadJob] = []
        with self._held(lambda letter: found.append(letter.dead) if letter.dead.job.id == job_id else None):
            pass
        return max(found, key=lambda letter: letter.died_at, default=None)

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
        """Do something with the chosen ones, oldest first, then remove them, in batches; return their ids."""
        todo: list[_Letter] = []
        with self._held(lambda letter: todo.append(letter) if chosen(letter.dead) else None) as held:
            todo.sort(key=lambda letter: letter.place)
            for start in range(0, len(todo), _BATCH):
                batch = todo[start : start + _BATCH]
                first(batch)
                held.remove(letter.message for letter in batch)
        return [letter.dead.job.id for letter in todo]

    def _replay(self, letters: Sequence[_Letter]) -> None:
        now = datetime.now(UTC)
        bodies = [letter.message.body for letter in letters]
        self._publisher.publish([self._routing.revived(body, _stored(body), now) for body in bodies])

    @contextmanager
    def _held(self, see: Callable[[_Letter], None]) -> Iterator[Holding]:
        connection = Connection(self._server, "dead letters")

        def decoded(message: HeldMessage) -> None:
            see(_Letter(dead_job(message.body, message.headers, message.message_id), message))

        try:
            with holding(connection, self._routing.topology.names.dead, decoded) as held:
                yield held
        finally:
            connection.close()

    def _place_of(self, job_id: str) -> _Place | None:
        """Where a page ended; it is remembered, or looked up among all."""
        if job_id in self._ends:
            return self._ends[job_id]
        letter = self.find(job_id)
        return (letter.died_at, job_id) if letter is not None else None

    def _remember(self, letter: DeadJob) -> None:
        self._ends[letter.job.id] = letter.died_at, letter.job.id
        self._ends.move_to_end(letter.job.id)
        while len(self._ends) > _PLACES:
            self._ends.popitem(last=False)


class KeepsDeadLetters:
    """The part of a queue that is :class:`~jfast_sync.ports.DeadLetters`."""

    _graveyard: Graveyard

    def dead(self, where: DeadFilter, *, limit: int, after: str | None = None) -> list[DeadJob]:
        """List dead letters, newest first; takes nothing away."""
        return self._graveyard.letters(where, limit, after)

    def find_dead(self, job_id: str) -> DeadJob | None:
        """Return the dead letter with this id, or None."""
        return self._graveyard.find(job_id)

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back with attempts and lapses at zero; return the ids that were there."""
        return self._graveyard.revive(ids)

    def revive_where(self, where: DeadFilter) -> int:
        """Put back every dead letter that matches; return how many."""
        return self._graveyard.revive_where(where)

    def discard(self, ids: Sequence[str]) -> list[str]:
        """Remove dead letters for good; return the ids that were there."""
        return self._graveyard.discard(ids)


def _matches(letter: DeadJob, where: DeadFilter) -> bool:
    return (
        (where.task is None or letter.job.task == where.task)
        and (where.tenant_id is None or letter.job.tenant_id == where.tenant_id)
        and (where.since is None or letter.died_at >= where.since)
    )


def _stored(body: bytes) -> Stored | None:
    try:
        return Stored.from_body(body)
    except PayloadError:
        return None


def _once(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(ids))
