"""The threads that run jobs: lease, execute, outcome, next.

They are daemons of our own: an executor would hold the process until its handlers return. A thread cannot be
killed; one that ignores its timeout is abandoned - it loses the right to commit and to settle - and replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from jfast_sync.loop import Deadline
from jfast_sync.worker.attempt import Attempt, Report
from jfast_sync.worker.execute import Executor
from jfast_sync.worker.settle import Settler
from jfast_sync.worker.slots import Slots
from jfast_sync.worker.state import State

__all__ = ["Runners"]


class Runners:
    """N threads, and those that were given up.

    Args:
        on_start: called with every attempt before it runs.
        on_death: called in a thread that dies.
    """

    def __init__(
        self,
        threads: int,
        slots: Slots,
        state: State,
        executor: Executor,
        settler: Settler,
        *,
        on_start: Callable[[Attempt], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._count = threads
        self._slots = slots
        self._state = state
        self._executor = executor
        self._settler = settler
        self._on_start = on_start
        self._on_death = on_death
        self._numbers = count(1)
        self._threads: dict[threading.Thread, Attempt | None] = {}
        self._abandoned: list[threading.Thread] = []

    def start(self) -> None:
        for _ in range(self._count):
            self._start_one()

    @property
    def abandoned(self) -> int:
        """How many given-up threads are still alive."""
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        return len(self._abandoned)

    def abandon(self, attempt: Attempt) -> None:
        """Give up the thread that runs ``attempt``, which was abandoned."""
        for thread, running in list(self._threads.items()):
            if running is attempt:
                del self._threads[thread]
                self._abandoned = [*self._abandoned, thread]
        self._state.running.pop(attempt.lease.token, None)
        self._slots.done()

    def replace(self, attempt: Attempt) -> None:
        """Give up the thread that runs ``attempt`` and start another in its place."""
        self.abandon(attempt)
        self._start_one()

    def join(self, deadline: Deadline) -> None:
        """Wait for the threads that were not given up, which end when the slots are closed."""
        for thread in list(self._threads):
            thread.join(deadline.remaining())

    def _start_one(self) -> None:
        thread = threading.Thread(target=self._run, name=f"jfast-runner-{next(self._numbers)}", daemon=True)
        self._threads[thread] = None
        thread.start()

    def _run(self) -> None:
        try:
            while self._run_next():
                pass
        except BaseException as exc:
            self._on_death(exc)

    def _run_next(self) -> bool:
        """Run one job; False when the thread has to end."""
        lease = self._slots.take()
        if lease is None:
            return False
        attempt = self._executor.begin(lease)
        self._threads[threading.current_thread()] = attempt
        self._state.running[lease.token] = attempt
        self._on_start(attempt)
        report: Report = self._executor.execute(attempt)
        if not attempt.end():
            return False  # abandoned meanwhile: it is settled, and another thread has this one's place
        self._state.running.pop(lease.token, None)
        self._settler.put(report)
        self._slots.done()
        return True
