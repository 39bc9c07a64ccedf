"""What becomes of leases: outcomes written in batches, renewals, and the leases of the vanished."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, assert_never

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Lease
from jfast_sync.outcome import Bury, Done, Release, Retry, Settlement
from jfast_sync.ports import Held, Settled
from jfast_sync.queues.redis.keys import Lane
from jfast_sync.queues.redis.lua_jobs import SETTLE
from jfast_sync.queues.redis.lua_upkeep import EXTEND, RECOVER
from jfast_sync.queues.redis.records import joined_error, micros, packed
from jfast_sync.queues.redis.store import RedisStore

__all__ = ["Leases"]

log = logging.getLogger("jfast_sync.queues.redis")

VANISHED: Final = "its worker vanished: the lease ran out before the job was finished"
_CHUNK: Final = 1000
_KEPT_ANSWERS: Final = 10_000  # to settlements that nobody has asked for again
_SECOND: Final = 1_000_000
_LONGEST_DELAY: Final = 3660 * 86_400.0  # as for a job's own delay; seconds
_HELD: Final = (Held.LOST, Held.YES, Held.CANCEL)


class _Doubt:
    """A batch that may have been written: its reply was lost, and so was that of its repetition."""

    def __init__(self, batch: Sequence[Settlement], key: str, nonce: str) -> None:
        self.batch = batch
        self.key = key
        self.nonce = nonce


class Leases(RedisStore):
    """Implements ``settle``, ``extend`` and ``recover`` of :class:`jfast_sync.ports.Queue`."""

    keep_done: float = 0.0

    def _open_leases(self) -> None:
        self._doubts: list[_Doubt] = []
        self._untold: dict[tuple[str, str], Settled] = {}  # written by a call that then failed on its next part
        self._doubts_lock = threading.Lock()

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes, each only where its token is current; one round trip for every 1,000."""
        known = self._clear_doubts(settlements)
        left = [one for one in settlements if _key(one) not in known]
        written: list[Settled] = []
        try:
            for start in range(0, len(left), _CHUNK):
                part = left[start : start + _CHUNK]
                written += self._write(_Doubt(part, self._caller_key("settle"), uuid.uuid4().hex))
        except UnavailableError:
            with self._doubts_lock:
                self._untold |= {**known, **dict(zip(map(_key, left), written, strict=False))}
            raise
        answers = iter(written)
        return [known.get(_key(one)) or next(answers) for one in settlements]

    def _write(self, attempt: _Doubt, *, again: bool = False) -> list[Settled]:
        lanes = sorted({_lane(one) for one in attempt.batch if not isinstance(one.outcome, Done)})
        args = [int(self.keep_done * _SECOND), *(value for one in attempt.batch for value in _written(one))]
        try:
            answers = self._replay(SETTLE, lanes, args, attempt.key, attempt.nonce, again=again)
        except UnavailableError:
            if not again:
                with self._doubts_lock:
                    self._doubts.append(attempt)
            raise
        return [Settled.APPLIED if answer == "1" else Settled.REFUSED for answer in answers.decode()]

    def _clear_doubts(self, asked: Sequence[Settlement]) -> dict[tuple[str, str], Settled]:
        """Have batches answered whose reply was lost in an outage; else what they wrote would look refused.

        Return the answers to what is asked for now; those to another thread's settlements are kept for it.
        """
        with self._doubts_lock:
            while self._doubts:
                first = self._doubts[0]
                self._untold |= zip(map(_key, first.batch), self._write(first, again=True), strict=True)
                self._doubts.pop(0)
            known = {key: self._untold.pop(key) for key in map(_key, asked) if key in self._untold}
            while len(self._untold) > _KEPT_ANSWERS:
                del self._untold[next(iter(self._untold))]
        return known

    def extend(self, leases: Sequence[Lease]) -> list[Held]:
        """Renew leases for a full visibility timeout."""
        answers: list[Held] = []
        for start in range(0, len(leases), _CHUNK):
            pairs = [text for lease in leases[start : start + _CHUNK] for text in (packed(lease.job.id), lease.token)]
            answers += [_HELD[number] for number in self._ask(EXTEND, (), self._lease_microseconds, *pairs)]
        return answers

    def recover(self) -> int:
        """Put lapsed leases back, below their last attempt, so that each has one more start."""
        total = 0
        while True:
            found, again = self._recover()
            total += found
            if again:
                self._load_lanes()
            elif found < _CHUNK:
                break
        if total:
            log.warning("%d jobs whose worker vanished are available again", total)
        return total

    def _recover(self) -> tuple[int, int]:
        # After an outage it only looks which run of the server this is: the time for others begins with that.
        limit = 0 if self._failing_since is not None or time.monotonic() < self._no_recovery_until else _CHUNK
        args = (self._lease_microseconds, int(self.keep_done * _SECOND), limit, VANISHED)
        answer: Any = self._guarded(lambda: self._run(RECOVER, self._lanes, *args))
        return answer[0], answer[1]

    @property
    def _lease_microseconds(self) -> int:
        return int(self.visibility_timeout * _SECOND)


def _key(settlement: Settlement) -> tuple[str, str]:
    return settlement.lease.token, settlement.lease.job.id


def _lane(settlement: Settlement) -> Lane:
    return Lane(settlement.lease.job.priority, settlement.lease.job.queue)


def _written(settlement: Settlement) -> tuple[Any, ...]:
    name, token = packed(settlement.lease.job.id), settlement.lease.token
    lane = _lane(settlement).name
    match settlement.outcome:
        case Done():
            return "D", name, token
        case Bury() as bury:
            return "B", name, token, lane, "d", 0, "", joined_error(bury.error, bury.traceback)
        case Release():
            return "L", name, token, lane, "d", 0, "", ""
        case Retry() as retry:
            flags = ("r" if retry.refund else "") + ("s" if retry.snooze else "")
            error = joined_error(retry.error, retry.traceback)
            kind, due = ("a", micros(retry.until)) if retry.until is not None else ("d", _microseconds(retry.delay))
            return "R", name, token, lane, kind, due, flags, error
        case _ as never:
            assert_never(never)


def _microseconds(seconds: float) -> int:
    return int(min(max(seconds, 0.0), _LONGEST_DELAY) * _SECOND)
