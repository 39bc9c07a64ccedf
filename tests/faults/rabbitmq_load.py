"""Load on a RabbitMQ that is killed under it: publishers that know what was confirmed."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Job, new_id
from jfast_sync.queues.rabbitmq.queue import RabbitQueue


class Publishers:
    """Threads that enqueue jobs with delays spread up to `longest` seconds, in small batches, whenever they can."""

    def __init__(self, queue: RabbitQueue, count: int, longest: float, *, task: str = "t", attempts: int = 3) -> None:
        self._longest = longest
        self._task = task
        self._attempts = attempts
        self.confirmed: set[str] = set()
        self._queue = queue
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set():
            jobs = [
                Job(
                    task=self._task, id=new_id(), max_attempts=self._attempts,
                    delay=timedelta(seconds=draw.uniform(0, self._longest)),
                )
                for _ in range(10)
            ]  # fmt: skip
            try:
                ids = self._queue.enqueue(jobs)
            except UnavailableError:
                self._stop.wait(0.1)
                continue
            with self._lock:
                self.confirmed.update(ids)
            self._stop.wait(0.03)

    def stop(self) -> set[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.confirmed
