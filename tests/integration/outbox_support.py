"""An app whose queue is not in its database, and fakes that fail as they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.job import Job
from jfast_sync.outbox.delivery import Delivery
from jfast_sync.outbox.relay import Relay, RelayOptions
from jfast_sync.outbox.table import OutboxTable
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.tasks.registry import Registry


class PickyQueue(MemoryQueue):
    """Refuses what `refuse` says, for each call with all its jobs; remembers every job it was given, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []
        self.refuse: Callable[[Sequence[Job]], Exception | None] = lambda _jobs: None

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        error = self.refuse(jobs)
        if error is not None:
            raise error
        self.given += [job.id for job in jobs]
        return super().enqueue(jobs)


@contextmanager
def opened(dsn: str, *, bus: RecordingBus | None = None, **outbox: Any) -> Iterator[tuple[Any, PickyQueue]]:
    """Open an app on a database of its own with its queue elsewhere; nothing runs in the background."""
    queue = PickyQueue()
    config = load_config(overrides={"database": {"dsn": dsn}, "outbox": outbox})
    with JFast(config, tasks=Registry(), queue=queue, bus=bus) as jf:
        jf.setup()
        yield jf, queue


def relay_of(jf: JFast, **options: Any) -> Relay:
    """Make one more relay, as another process has it; it runs by `run_once` or when started."""
    assert jf.database is not None
    delivery = Delivery(jf.queue.backend, jf.bus)
    return Relay(OutboxTable(jf.database), delivery, RelayOptions(**options))
