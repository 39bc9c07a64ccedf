"""Dead letters: listed newest first in pages, put back, thrown away; the server is never held up for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from jfast_sync.job import DeadJob
from jfast_sync.ports import DeadFilter
from jfast_sync.queues.redis.lua_upkeep import DISCARD, REVIVE
from jfast_sync.queues.redis.records import Meta, Record, micros, packed, shown_name, unpacked
from jfast_sync.queues.redis.store import RedisStore

__all__ = ["RedisDeadLetters"]

_PAGE: Final = 200


class RedisDeadLetters(RedisStore):
    """Implements :class:`jfast_sync.ports.DeadLetters`."""

    def dead(self, where: DeadFilter, *, limit: int, after: str | None = None) -> list[DeadJob]:
        """List newest first; an ``after`` that is no longer there has nothing behind it."""
        start = 0
        if after is not None:
            rank = self._command("ZREVRANK", self.keys.dead, packed(after))
            if rank is None:
                return []
            start = int(rank) + 1
        found: list[DeadJob] = []
        while len(found) < limit:
            size = _PAGE if _filtered(where) else min(_PAGE, limit - len(found))
            ids = self._command("ZREVRANGE", self.keys.dead, start, start + size - 1)
            letters = self._letters(ids)
            found += [letter for letter in letters if _matches(letter, where)]
            start += len(ids)
            if len(ids) < size or (where.since is not None and letters and letters[-1].died_at < where.since):
                break
        return found[:limit]

    def find_dead(self, job_id: str) -> DeadJob | None:
        """Return the dead letter with this id, or None."""
        return next(iter(self._letters([packed(job_id)])), None)

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back with attempts and lapses at zero; return the ids that were there."""
        revived: set[bytes] = set()
        wanted = [packed(name) for name in dict.fromkeys(ids)]
        for start in range(0, len(wanted), _PAGE):
            again = True
            while again:
                *gone, flag = self._ask(REVIVE, self._lanes, *wanted[start : start + _PAGE])
                revived.update(gone)
                if again := bool(flag):
                    self._load_lanes()
        return [unpacked(name) for name in wanted if name in revived]

    def revive_where(self, where: DeadFilter) -> int:
        """Put back every dead letter that matches, in batches; what dies meanwhile is left."""
        total, kept = 0, 0
        until = self._time()
        earliest = "-inf" if where.since is None else micros(where.since)
        while True:
            ids = self._command("ZREVRANGEBYSCORE", self.keys.dead, until, earliest, "LIMIT", kept, _PAGE)
            if not ids:
                return total
            matching = [letter.job.id for letter in self._letters(ids) if _matches(letter, where)]
            revived = len(self.revive(matching))
            total += revived
            # Where nothing moved, the next page has to be another one: a foreign entry may have no id to revive it by.
            kept += len(ids) - len(matching) if revived else len(ids)

    def discard(self, ids: Sequence[str]) -> list[str]:
        """Remove dead letters for good; return the ids that were there."""
        gone: set[bytes] = set()
        wanted = [packed(name) for name in dict.fromkeys(ids)]
        for start in range(0, len(wanted), _PAGE):
            gone.update(self._ask(DISCARD, (), *wanted[start : start + _PAGE]))
        return [unpacked(name) for name in wanted if name in gone]

    def _letters(self, ids: Sequence[bytes]) -> list[DeadJob]:
        """Read dead letters; one that is none any more is left out."""
        return [
            Record.of(name, stored).dead(meta, died, error)
            for name, stored, meta, error, died in self._entries(ids, self.keys.dead)
            if died is not None
        ]

    def _entries(
        self, ids: Sequence[bytes], scores: str | None
    ) -> Iterator[tuple[str, bytes, Meta, bytes | None, float | None]]:
        """Read what is stored under each id at one instant, with its score in one sorted set; the missing left out."""
        if not ids:
            return

        def read() -> Any:
            pipeline = self._redis.pipeline(transaction=True)
            for key in (self.keys.jobs, self.keys.meta, self.keys.errors):
                pipeline.execute_command("HMGET", key, *ids)
            if scores is not None:
                pipeline.execute_command("ZMSCORE", scores, *ids)
            return pipeline.execute()

        found = self._guarded(lambda: self._repeat(lambda _again: read()))
        marks = found[3] if scores is not None else [None] * len(ids)
        for name, stored, meta, error, mark in zip(ids, found[0], found[1], found[2], marks, strict=True):
            if stored is not None:
                score = None if mark is None else float(mark)
                yield shown_name(name), stored, Meta.of(meta), error, score

    def _command(self, *words: Any) -> Any:
        """Run one reading command, twice where the reply was lost."""
        return self._guarded(lambda: self._repeat(lambda _again: self._redis.execute_command(*words)))

    def _time(self) -> int:
        seconds, rest = self._command("TIME")
        return int(seconds) * 1_000_000 + int(rest)


def _filtered(where: DeadFilter) -> bool:
    return where.task is not None or where.tenant_id is not None


def _matches(letter: DeadJob, where: DeadFilter) -> bool:
    return (
        (where.task is None or letter.job.task == where.task)
        and (where.tenant_id is None or letter.job.tenant_id == where.tenant_id)
        and (where.since is None or letter.died_at >= where.since)
    )
