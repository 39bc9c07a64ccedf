"""When ``--drain`` has nothing left to wait for.

States are looked at one after the other, so a job on its way from one to another may be missed; whoever asks believes
only the second such answer in a row, with a claim in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from jfast_sync.ports import Inspectable, JobRow, Queue, Selection

__all__ = ["Emptiness"]

_LISTED: Final = 200


class Emptiness:
    """Says whether nothing is ready or running, and nothing delayed is due soon.

    A worker that takes only some queues or tasks waits for those alone, where the backend can list jobs. Where it
    cannot, the delayed jobs waited for are the retries that this worker wrote itself.

    Args:
        selection: what the worker claims.
        horizon: seconds; a job delayed for longer is left for another run.
        last_retry_due: when the latest retry within the horizon that this worker wrote is due (monotonic clock).
        coming: whether jobs are on their way into the queue.
    """

    def __init__(
        self,
        queue: Queue,
        selection: Selection,
        horizon: float,
        last_retry_due: Callable[[], float],
        coming: Callable[[], bool] = lambda: False,
    ) -> None:
        self._queue = queue
        self._selection = selection
        self._horizon = horizon
        self._last_retry_due = last_retry_due
        self._coming = coming

    def __call__(self) -> bool:
        if time.monotonic() <= self._last_retry_due() or self._coming():
            return False
        stats = self._queue.stats()
        if not (stats.ready or stats.running or stats.delayed):
            return True
        takes_all = self._selection.queues is None and self._selection.tasks is None
        if takes_all or not isinstance(self._queue, Inspectable):  # one look at all states: no job moves past it
            if stats.ready or stats.running:
                return False
        elif self._any("running") or self._any("ready"):
            return False
        return not self._due_soon()

    def _any(self, state: str) -> bool:
        return any(True for _ in self._ours(state))

    def _due_soon(self) -> bool:
        horizon = datetime.now(UTC) + timedelta(seconds=self._horizon)
        return any(row.job.available_at is None or row.job.available_at <= horizon for row in self._ours("delayed"))

    def _ours(self, state: str) -> Iterable[JobRow]:
        if not isinstance(self._queue, Inspectable):
            return
        for queue in self._selection.queues or (None,):
            for row in self._queue.jobs(state=state, queue=queue, limit=_LISTED):
                if self._selection.tasks is None or row.job.task in self._selection.tasks:
                    yield row
