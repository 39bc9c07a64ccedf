"""The queue as an application sees it: jobs are checked and completed here, then handed to the backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from jfast_sync.errors import UnsupportedError
from jfast_sync.job import Job
from jfast_sync.payload import encode
from jfast_sync.ports import DeadLetters, Inspectable, Queue, Stats

if TYPE_CHECKING:
    from jfast_sync.config import Config
    from jfast_sync.outbox.waiting import WaitingJobs
    from jfast_sync.tasks.registry import Registry

__all__ = ["QueueClient"]

log = logging.getLogger("jfast_sync.queue")

_CHUNK: Final = 1000


class QueueClient:
    """``jf.queue``: enqueue in transactions of its own, count, and reach dead letters.

    To make a job part of your own transaction, use ``jf.outbox.enqueue(session, job)`` or
    ``task.enqueue(payload, session=session)``.

    Args:
        backend: where jobs are stored.
        tasks: the registry whose options fill what a job leaves open.
        config: defaults and bounds.
        ready: called before every use; makes sure that the tables exist.
    """

    def __init__(self, backend: Queue, tasks: Registry, config: Config, ready: Callable[[], None]) -> None:
        self.backend = backend
        self._tasks = tasks
        self._config = config.queue
        self._ready = ready
        #: The outbox's jobs that are not in the queue yet; None where everything goes straight into the queue.
        self.waiting: WaitingJobs | None = None

    def prepare(self, job: Job) -> Job:
        """Return the job as it is stored: payload checked and encoded, open fields filled.

        ``max_attempts``: the job's own, else the task's, else the configuration's.

        Raises:
            PayloadError: the payload cannot be stored; the message names the path inside it.
        """
        if not isinstance(job, Job):
            raise TypeError(f'expected a Job, got {job!r:.80}; write Job(task="...", payload={{...}})')
        task = self._tasks.find(job.task)
        own = task.max_attempts if task is not None else None
        return replace(
            job,
            payload=encode(job.payload, max_bytes=self._config.max_payload_bytes),
            max_attempts=job.max_attempts or own or self._config.max_attempts,
        )

    def enqueue(self, job: Job) -> str:
        """Store one job durably, in a transaction of its own, and return its id.

        A job whose id is already stored is left as it is.

        Raises:
            PayloadError: the payload cannot be stored.
            UnavailableError: the backend cannot be reached; nothing was stored, unless a reply is said to be lost.
                The same job, with its id, may be enqueued again.
        """
        prepared = self.prepare(job)
        self._ready()
        self.tell_known([prepared], len(self.backend.enqueue([prepared])))
        return prepared.id

    def enqueue_many(self, jobs: Iterable[Job], *, progress: Callable[[int], None] | None = None) -> list[str]:
        """Store many jobs and return their ids in order; every job is checked before the first one is stored.

        Args:
            jobs: any number; stored in transactions of 1,000.
            progress: called with the number stored after each of these.
        """
        prepared = [self.prepare(job) for job in jobs]
        self._ready()
        for chunk in _chunks(prepared):
            self.tell_known(chunk, len(self.backend.enqueue(chunk)))
            if progress is not None:
                progress(len(chunk))
        return [job.id for job in prepared]

    def tell_known(self, jobs: Sequence[Job], stored: int) -> None:
        """Log that some jobs were not stored, where so many were."""
        if stored < len(jobs) == 1:
            log.info("job %s of task %s was not stored: its id is there already", jobs[0].id, jobs[0].task)
        elif stored < len(jobs):
            log.info("%d of %d jobs were not stored: their ids are there already", len(jobs) - stored, len(jobs))

    def stats(self) -> Stats:
        """Count jobs by state, among the delayed those that wait in the outbox for their time; never scans a table."""
        self._ready()
        stats = self.backend.stats()
        return stats if self.waiting is None else replace(stats, delayed=stats.delayed + self.waiting.delayed())

    @property
    def dead_letters(self) -> DeadLetters:
        """The backend's dead letters.

        Raises:
            UnsupportedError: the backend keeps none that can be read.
        """
        if not isinstance(self.backend, DeadLetters):
            raise UnsupportedError(f"the {self.backend.backend} backend cannot list dead letters")
        self._ready()
        return self.backend

    @property
    def inspect(self) -> Inspectable:
        """The lookup of single jobs, in the queue and on their way to it.

        Raises:
            UnsupportedError: the backend cannot find a job by its id.
        """
        if not isinstance(self.backend, Inspectable):
            raise UnsupportedError(
                f"the {self.backend.backend} backend finds no job by its id, dead letters excepted: "
                "`jfast-sync jobs dead` lists them, `jfast-sync stats` counts the others"
            )
        self._ready()
        if self.waiting is None:
            return self.backend
        from jfast_sync.outbox.waiting import Everywhere

        return Everywhere(self.backend, self.waiting)


def _chunks(jobs: list[Job]) -> Iterator[list[Job]]:
    stream = iter(jobs)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk
