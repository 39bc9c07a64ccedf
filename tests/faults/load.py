"""A steady load during a fault: jobs enqueued all the time by a client that retries, and run by the same workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jfast_sync import Job
from jfast_sync.errors import UnavailableError
from jfast_sync.job import new_id
from tests.process.project import Project
from tests.process.workers import WorkerProcess
from tests.waiting import eventually


class Load:
    """Enqueues one job every few milliseconds from a thread of its own until told to stop.

    An enqueue whose reply was lost is tried again with the same id, as a careful client does. `ids` are the accepted.
    """

    def __init__(self, project: Project, seconds: float) -> None:
        self.ids: list[str] = []
        self.refused = 0
        self._project = project
        self._payload = {"seconds": seconds}
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.004):
                self._enqueue(new_id())
        except BaseException as error:
            self._failure = error

    def _enqueue(self, job_id: str) -> None:
        while not self._stop.is_set():
            try:
                self._project.jfast.queue.enqueue(Job(task="work.quick", payload=self._payload, id=job_id))
            except UnavailableError:
                self.refused += 1
                self._stop.wait(0.1)
            else:
                self.ids.append(job_id)
                return

    def wait_for_more(self, count: int, timeout: float = 60.0) -> None:
        """Wait until this many more jobs were accepted."""
        until = len(self.ids) + count
        eventually(lambda: len(self.ids), timeout, until=lambda now: now >= until or self._failure is not None)

    def stop(self) -> list[str]:
        """Stop, and return the ids of the jobs that were accepted."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.ids


@contextmanager
def load(project: Project, seconds: float = 0.01) -> Iterator[Load]:
    """Keep enqueueing jobs that run for `seconds` inside the block."""
    running = Load(project, seconds)
    running._thread.start()
    try:
        yield running
    finally:
        running._stop.set()
        running._thread.join()


def assert_nothing_lost(project: Project, workers: list[WorkerProcess], ids: list[str], timeout: float = 60.0) -> None:
    """The same worker processes finish everything; every accepted job has its effect exactly once.

    A job whose acceptance the client never learnt of may be there too, with its effect once.
    """
    eventually(project.store.unfinished, timeout, until=lambda left: left == 0, what="all jobs done", interval=0.1)
    assert [worker.name for worker in workers if not worker.running] == []
    project.assert_once(ids)
    assert set(project.store.effects().values()) == {1}
    assert project.store.jobs("dead") == []
