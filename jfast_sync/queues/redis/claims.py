"""Enqueueing and claiming."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from jfast_sync.errors import PayloadError, UnavailableError, UnsupportedError
from jfast_sync.job import Job, Lease
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Bury, Settlement
from jfast_sync.ports import Selection, Settled
from jfast_sync.queues.redis.keys import Lane
from jfast_sync.queues.redis.lua_jobs import CLAIM, ENQUEUE
from jfast_sync.queues.redis.lua_upkeep import ADOPT
from jfast_sync.queues.redis.records import Meta, Record, flat, micros, packed, split_error, unpacked
from jfast_sync.queues.redis.store import RedisStore
from jfast_sync.queues.redis.waiting import Waiting
from jfast_sync.redact import error_text

__all__ = ["Claims"]

log = logging.getLogger("jfast_sync.queues.redis")

_BATCH: Final = 1000  # leases of one claim at most: a script holds up everybody else
_SECOND: Final = 1_000_000
_UNANSWERED_SLACK: Final = 2.0


class Claims(RedisStore):
    """Implements ``enqueue``, ``claim`` and ``wake`` of :class:`jfast_sync.ports.Queue`."""

    settle: Callable[[Sequence[Settlement]], list[Settled]]

    def _open_waiting(self) -> None:
        self._waiting = Waiting(self._pool)
        self._unanswered: tuple[str, float] | None = None  # a claim whose reply was lost: its id, when it was sent

    # --- enqueueing ----------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        """Store jobs; return the ids newly stored."""
        if not jobs:
            return []
        lanes = sorted({Lane(job.priority, job.queue) for job in jobs})
        args = [value for job in jobs for value in _stored(job)]
        answers = self._once(ENQUEUE, lanes, *args)
        return [job.id for job, answer in zip(jobs, answers.decode(), strict=True) if answer == "1"]

    # --- claiming ------------------------------------------------------------------------------------------------

    def claim(self, limit: int, wait: float, selection: Selection) -> list[Lease]:
        """Lease up to ``limit`` due jobs, waiting up to ``wait`` seconds for the first one.

        Raises:
            UnsupportedError: the selection names tasks.
        """
        if selection.tasks is not None:
            raise UnsupportedError(
                'claim = "registered" needs a queue in PostgreSQL or SQLite: Redis cannot select jobs by their task; '
                "give the tasks a named queue and the worker --queues"
            )
        if limit < 1:
            return []
        deadline = Deadline(wait)
        token = False
        while True:
            leases, due = self._look(limit, selection, token)
            if leases or not deadline.remaining():
                return leases
            stop, token = self._wait(selection, deadline.remaining(due))
            if stop or not (token or deadline.remaining()):
                return []

    def wake(self) -> None:
        """End a waiting claim at once; when none waits, the next one does not."""
        self._waiting.stop_waiting()

    def _wait(self, selection: Selection, seconds: float) -> tuple[bool, bool]:
        names = selection.queues if selection.queues is not None else {lane.queue for lane in self._lanes}
        keys = [*(self.keys.wake_queue(name) for name in sorted(names)), self.keys.wake]
        return self._guarded(lambda: self._waiting.wait(keys, seconds))

    def _look(self, limit: int, selection: Selection, token: bool) -> tuple[list[Lease], float]:
        """Claim once; return the leases, and in how many seconds the next job is due."""
        wanted = selection.queues
        if wanted is not None and not wanted:
            return [], float("inf")
        claim_id, sent = self._unanswered or (uuid.uuid4().hex, time.monotonic())
        fixed = (min(limit, _BATCH), self._lease_time, claim_id, selection.worker)

        def ask(lanes: Sequence[Lane], version: str) -> Any:
            def run(again: bool) -> Any:
                # A repeated claim is given what the first one took.
                since = time.monotonic() - sent + _UNANSWERED_SLACK if again or self._unanswered else 0.0
                return self._run(CLAIM, lanes, *fixed, int(since * _SECOND), int(token), version=version)

            return self._guarded(lambda: self._repeat(run))

        try:
            answer = self._with_lanes(ask, None if wanted is None else lambda lane: lane.queue in wanted)
        except UnavailableError:
            self._unanswered = (claim_id, sent)
            raise
        self._unanswered = None
        due = answer[1] / _SECOND if answer[1] >= 0 else float("inf")
        return self._leases(answer), due

    def _leases(self, answer: Sequence[Any]) -> list[Lease]:
        leases: list[Lease] = []
        broken: list[Settlement] = []
        for name, stored, text, error in flat(answer[2:], 4):
            meta = Meta.of(text)
            try:
                record = Record.of(unpacked(name), stored)
                leases.append(record.lease(meta, answer[0], split_error(error)[0]))
            except PayloadError as exc:
                self._bury(broken, name, stored, meta, error_text(exc))
            except (ValueError, TypeError):
                self._adopt(name, meta.token)
        if broken:
            log.error("%d stored jobs cannot be decoded and are dead letters now", len(broken))
            self.settle(broken)
        return leases

    def _bury(self, broken: list[Settlement], name: bytes, stored: bytes, meta: Meta, reason: str) -> None:
        try:
            job, _ = Record.of(unpacked(name), stored).shown(meta, meta.due, None)
        except PayloadError:  # not even its id can be one of ours
            self._adopt(name, meta.token)
            return
        lease = Lease(job=job, token=meta.token, claimed_at=job.created_at or _never())
        broken.append(Settlement(lease, Bury(reason)))

    def _adopt(self, name: bytes, token: str) -> None:
        log.error("an entry that is not a job was found among the jobs and is a dead letter now")
        reason = "PayloadError: not a job: an entry that this library did not write"
        self._ask(ADOPT, (), name, token, reason)

    @property
    def _lease_time(self) -> int:
        return int(self.visibility_timeout * _SECOND)


def _never() -> Any:
    from jfast_sync.queues.redis.records import at

    return at(0)


def _stored(job: Job) -> tuple[Any, ...]:
    kind, value = "n", 0
    if job.delay is not None:
        kind, value = "d", int(job.delay.total_seconds() * _SECOND)
    elif job.available_at is not None:
        kind, value = "a", micros(job.available_at)
    head = f"{job.max_attempts or 1} {kind} {value} {job.attempts} {Lane(job.priority, job.queue).name}"
    return packed(job.id), job.to_wire(), job.error or "", head
