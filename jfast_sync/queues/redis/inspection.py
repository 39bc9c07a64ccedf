"""Jobs found by id, listed, counted and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from jfast_sync.errors import PayloadError
from jfast_sync.ports import Cancelled, JobRow, Stats
from jfast_sync.queues.redis.dead import RedisDeadLetters
from jfast_sync.queues.redis.keys import Lane
from jfast_sync.queues.redis.lua_upkeep import CANCEL, STATS
from jfast_sync.queues.redis.records import Meta, Record, done_row, packed, shown_name

__all__ = ["RedisInspection"]

_STATES: Final = ("running", "ready", "delayed", "dead", "done")
_PAGE: Final = 200
_SORTED_RUNNING: Final = 1000
_MOVES: Final = 5


class RedisInspection(RedisDeadLetters):
    """Implements :class:`jfast_sync.ports.Inspectable`, ``stats`` and ``record``."""

    def find(self, job_id: str) -> JobRow | None:
        """Return the job with this id, or None."""
        for _ in range(_MOVES):
            found = self._command("HGET", self.keys.jobs, packed(job_id))
            if found is None:
                break
            row = self._waiting_or_held(Record.of(job_id, found))
            if row is not None:
                return row
        kept = self._command("HGET", self.keys.kept, packed(job_id))
        return done_row(job_id, kept) if kept is not None else None

    def _waiting_or_held(self, record: Record) -> JobRow | None:
        """Return the row of a job that is not finished; None when it was between two looks."""
        keys, name = self.keys, packed(record.id)

        def read() -> Any:
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.execute_command("HGET", keys.meta, name)
            pipeline.execute_command("HGET", keys.errors, name)
            for scores in (keys.leases, keys.dead, keys.ready(record.lane)):
                pipeline.execute_command("ZSCORE", scores, name)
            pipeline.execute_command("TIME")
            return pipeline.execute()

        meta, error, held, died, due, now = self._guarded(lambda: self._repeat(lambda _again: read()))
        known = Meta.of(meta)
        if held is not None:
            return record.row(known, "running", float(held), error)
        if died is not None:
            return record.row(known, "dead", float(died), error)
        if due is not None:
            state = "delayed" if float(due) > _microseconds(now) else "ready"
            return record.row(known, state, float(due), error)
        return None

    def jobs(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        limit: int = 50,
    ) -> list[JobRow]:
        """List jobs that match, by state (running, ready, delayed, dead, done), then as they would be claimed."""
        if state is not None and state not in _STATES:
            raise PayloadError(f"{state!r} is not a state of a job; one of {', '.join(_STATES)}")
        wanted = {name: value for name, value in (("task", task), ("queue", queue), ("tenant_id", tenant_id)) if value}
        self._load_lanes()
        found: list[JobRow] = []
        for name in _STATES if state is None else (state,):
            rows = self._listed(name, queue, limit - len(found))
            matching = (row for row in rows if all(getattr(row.job, key) == value for key, value in wanted.items()))
            found += islice(matching, limit - len(found))
        return found

    def _listed(self, state: str, queue: str | None, room: int) -> Iterator[JobRow]:
        lanes = [lane for lane in self._lanes if queue is None or lane.queue == queue]
        now = self._time()
        match state:
            case "running":
                rows = list(islice(self._rows(state, self.keys.leases, "-inf", "+inf", room), _SORTED_RUNNING))
                yield from sorted(rows, key=lambda row: (-row.job.priority, row.job.available_at or row.job.created_at))
            case "ready":
                for lane in lanes:
                    yield from self._rows(state, self.keys.ready(lane), "-inf", now, room)
            case "delayed":
                for lane in lanes:
                    yield from self._rows(state, self.keys.ready(lane), f"({now}", "+inf", room)
            case "dead":
                yield from self._rows(state, self.keys.dead, "+inf", "-inf", room, newest_first=True)
            case _:
                yield from self._done(room)

    def _rows(
        self, state: str, key: str, first: object, last: object, room: int, *, newest_first: bool = False
    ) -> Iterator[JobRow]:
        """Read a sorted set in pages, the first no larger than what is asked for."""
        command = "ZREVRANGEBYSCORE" if newest_first else "ZRANGEBYSCORE"
        start, size = 0, min(max(room, 1), _PAGE) if state != "running" else _PAGE
        while room > 0 and (ids := self._command(command, key, first, last, "LIMIT", start, size)):
            for name, stored, meta, error, score in self._entries(ids, key):
                if score is not None:
                    yield Record.of(name, stored).row(meta, state, score, error)
            start, size = start + len(ids), _PAGE

    def _done(self, room: int) -> Iterator[JobRow]:
        start = 0
        while room > 0 and (ids := self._command("ZREVRANGE", self.keys.done, start, start + _PAGE - 1)):
            kept = self._command("HMGET", self.keys.kept, *ids)
            yield from (done_row(shown_name(name), one) for name, one in zip(ids, kept, strict=True) if one is not None)
            start += len(ids)

    def cancel(self, job_id: str) -> Cancelled:
        """Remove a waiting job, or have a running one told at its next renewal."""
        stored = self._command("HGET", self.keys.jobs, packed(job_id))
        if stored is None:
            return Cancelled.UNKNOWN
        return Cancelled(self._ask(CANCEL, [Record.of(job_id, stored).lane], packed(job_id)).decode())

    def record(self, done: Mapping[str, int], failed: Mapping[str, int]) -> None:
        """Add to the counters of finished and failed attempts per task."""
        counts = [(f"d:{task}", number) for task, number in done.items()]
        counts += [(f"f:{task}", number) for task, number in failed.items()]
        if counts:
            self._guarded(lambda: self._count(counts))

    def _count(self, counts: Sequence[tuple[str, int]]) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        for name, number in counts:
            pipeline.execute_command("HINCRBY", self.keys.counts, name, number)
        pipeline.execute()

    def stats(self) -> Stats:
        """Count jobs by state, without scanning."""

        def ask(lanes: Sequence[Lane], version: str) -> Any:
            return self._guarded(lambda: self._repeat(lambda _again: self._run(STATS, lanes, version=version)))

        ready, delayed, running, dead, age = self._with_lanes(ask)
        counts: Mapping[bytes, bytes] = self._command("HGETALL", self.keys.counts)
        return Stats(
            ready=ready,
            delayed=delayed,
            running=running,
            dead=dead,
            oldest_ready=None if age < 0 else age / 1_000_000,
            done_by_task=_counted(counts, "d:"),
            failed_by_task=_counted(counts, "f:"),
            warnings=self._remarks(),
        )

    _remarks: Callable[[], Sequence[str]]


def _counted(counts: Mapping[bytes, bytes], kind: str) -> dict[str, int]:
    named = ((name.decode(errors="replace"), number) for name, number in counts.items())
    return {name.removeprefix(kind): int(number) for name, number in named if name.startswith(kind)}


def _microseconds(time: Any) -> int:
    seconds, rest = time
    return int(seconds) * 1_000_000 + int(rest)
