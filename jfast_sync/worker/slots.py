"""How many jobs may be in the worker's hands, and which of them wait for a thread.

Capacity first, then claim: the fetcher asks how much room there is before it takes anything. The buffer is measured
in time, not in jobs: no more than the threads finish in 50 ms at the present pace, so it is none for slow jobs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Final

from jfast_sync.job import Lease

__all__ = ["MAX_BUFFER", "Room", "Slots"]

MAX_BUFFER: Final = 500
_BUFFER_SECONDS: Final = 0.05
_STALE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Room:
    """How many jobs may be claimed now; ``idle`` threads wait for one."""

    limit: int
    idle: int


class Slots:
    """The hand-over between the fetcher and the runner threads.

    Args:
        threads: runner threads.
        max_starts: hand out no more leases than this in all; None is no limit.
        max_age: seconds after which a waiting lease is not started but given back: the process was paused.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        threads: int,
        max_starts: int | None = None,
        *,
        max_age: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = threads
        self._max_starts = max_starts
        self._clock = clock
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._max_age = max_age
        self._waiting: deque[tuple[float, Lease]] = deque()
        self._busy = 0
        self._started = 0
        self._finished = 0
        self._closed = False
        self._window = (clock(), 0)
        self._buffer = 0

    @property
    def started(self) -> int:
        """How many leases were handed to a thread."""
        return self._started

    @property
    def busy(self) -> int:
        """How many threads are running a job."""
        return self._busy

    @property
    def quiet(self) -> bool:
        """Whether nothing runs and nothing waits."""
        with self._work:
            return not self._busy and not self._waiting

    @property
    def spent(self) -> bool:
        """Whether the last start that was allowed has been handed out."""
        return self._max_starts is not None and self._started >= self._max_starts

    # the runner's side

    def take(self) -> Lease | None:
        """Wait for a lease to run; None when the worker stops."""
        with self._work:
            while not self._startable():
                if self._closed:
                    return None
                self._work.wait()
            _, lease = self._waiting.popleft()
            self._busy += 1
            self._started += 1
            return lease

    def done(self) -> None:
        """A thread has finished its job, or was given up and replaced."""
        with self._room:
            self._busy -= 1
            self._finished += 1
            if self._wanted():
                self._room.notify()

    # the fetcher's side

    def room(self, timeout: float) -> Room:
        """Say how much may be claimed; waits up to ``timeout`` seconds for an idle thread or a half-empty buffer."""
        with self._room:
            if not self._wanted():
                self._room.wait(self._until_stale(timeout))
            self._measure()
            held = self._busy + len(self._waiting)
            limit = self._threads + self._buffer - held if self._wanted() else 0
            if self._max_starts is not None:
                limit = min(limit, self._max_starts - self._started - len(self._waiting))
            return Room(max(limit, 0), max(self._threads - held, 0))

    def wait_idle(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for a thread to become idle."""
        with self._room:
            if not self._closed and self._busy + len(self._waiting) >= self._threads:
                self._room.wait(timeout)

    def give(self, leases: Iterable[Lease]) -> list[Lease]:
        """Hand leases to the threads; return those that were not accepted because the worker stops."""
        now = self._clock()
        with self._work:
            if self._closed:
                return list(leases)
            before = len(self._waiting)
            self._waiting.extend((now, lease) for lease in leases)
            self._work.notify(len(self._waiting) - before)
            return []

    def stale(self) -> list[Lease]:
        """Take back what has waited for a thread for 200 ms: somebody else may be idle."""
        oldest = self._clock() - _STALE_SECONDS
        back: list[Lease] = []
        with self._work:
            while self._waiting and self._waiting[0][0] <= oldest:
                back.append(self._waiting.popleft()[1])
        return back

    def drop(self, tokens: Container[str]) -> list[Lease]:
        """Take back waiting leases by their tokens, which turned out to be lost."""
        with self._work:
            back = [lease for _, lease in self._waiting if lease.token in tokens]
            if back:
                self._waiting = deque(entry for entry in self._waiting if entry[1].token not in tokens)
            return back

    def close(self) -> list[Lease]:
        """Hand out nothing any more; return what no thread had started."""
        with self._work:
            self._closed = True
            back = [lease for _, lease in self._waiting]
            self._waiting.clear()
            self._work.notify_all()
            self._room.notify_all()
            return back

    def _startable(self) -> bool:
        """Whether something waits that is still young; what is not stays for :meth:`stale`, and wakes the fetcher."""
        if not self._waiting or self._waiting[0][0] + self._max_age > self._clock():
            return bool(self._waiting)
        self._room.notify()
        return False

    def _wanted(self) -> bool:
        waiting = len(self._waiting)
        return self._closed or self._busy + waiting < self._threads or waiting < (self._buffer + 1) // 2

    def _until_stale(self, timeout: float) -> float:
        if not self._waiting:
            return timeout
        return min(timeout, max(self._waiting[0][0] + _STALE_SECONDS - self._clock(), 0.0))

    def _measure(self) -> None:
        since, finished = self._window
        elapsed = self._clock() - since
        if elapsed >= _BUFFER_SECONDS:
            pace = (self._finished - finished) / elapsed
            self._buffer = min(int(pace * _BUFFER_SECONDS), MAX_BUFFER)
            self._window = (since + elapsed, self._finished)
