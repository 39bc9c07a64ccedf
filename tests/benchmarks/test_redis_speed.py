"""The Redis queue beside the driver alone, in the same run: a list, ``BLMOVE`` and ``LREM``, one job at a time.

Only ratios are asserted, and loosely: they hold on a loaded machine. The figures are printed (``tox -e bench``).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis

from jfast_sync import JFast, Job
from jfast_sync.config import load_config
from jfast_sync.outcome import Done, Settlement
from jfast_sync.ports import Selection
from jfast_sync.queues.redis import RedisQueue
from jfast_sync.tasks.registry import Registry

pytestmark = pytest.mark.timed

THREADS = 8
CONFIG = """[plugins]
enabled = ["queue", "cache"]
[plugin.queue]
backend = "redis"
[plugin.cache]
url = "{url}"
"""


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def raw(url: str, jobs: int) -> tuple[float, float]:
    """Push and drain with the driver alone; return jobs per second of each."""
    with closing(redis.Redis.from_url(url, protocol=2)) as client:

        def push() -> None:
            for number in range(jobs):
                body = json.dumps({"id": uuid.uuid4().hex, "task": "noop", "payload": {"n": number}, "pad": "x" * 190})
                client.lpush("raw", body)

        def drain() -> None:
            for _ in range(jobs):
                body = client.blmove("raw", "raw:mine", 1)
                json.loads(body)  # type: ignore[arg-type]
                client.lrem("raw:mine", -1, body)  # type: ignore[arg-type]

        return jobs / timed(push), jobs / timed(drain)


def batched(url: str, jobs: int, size: int) -> float:
    """Claim and settle through the queue alone, ``size`` at a time; return jobs per second."""
    with closing(RedisQueue(url)) as queue:
        queue.enqueue([Job(task="bench.noop", payload={"n": n}, max_attempts=3) for n in range(jobs)])
        me = Selection(worker="bench")

        def drain() -> None:
            while leases := queue.claim(size, 0, me):
                queue.settle([Settlement(lease, Done()) for lease in leases])

        return jobs / timed(drain)


def worked(url: str, folder: Path, jobs: int) -> tuple[float, float]:
    """Enqueue one by one and let one worker run everything; return jobs per second of each."""
    (folder / "jfast.toml").write_text(CONFIG.format(url=url))
    tasks = Registry()

    @tasks.task("bench.noop")
    def noop(payload: dict[str, int]) -> None:
        pass

    with JFast(load_config(folder, environ={}), tasks=tasks) as app:
        app.setup()

        def push() -> None:
            for number in range(jobs):
                app.queue.enqueue(Job(task="bench.noop", payload={"n": number}))

        pushed = timed(push)
        worker = app.worker(threads=THREADS, drain=True)
        took = timed(worker.run)
        assert app.queue.stats().done_by_task == {"bench.noop": jobs}
        return jobs / pushed, jobs / took


def compare(url: str, folder: Path, jobs: int) -> dict[str, float]:
    """Measure everything on one server; return the ratios to the driver alone."""
    push, drain = raw(url, jobs)
    ratios = {f"claim {size}": batched(url, jobs, size) / drain for size in (1, 10, 100)}
    enqueue, worker = worked(url, folder, jobs)
    ratios |= {"enqueue": enqueue / push, "worker": worker / drain}
    print(f"driver alone: push {push:,.0f} jobs/s, drain {drain:,.0f} jobs/s")
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return ratios


def test_the_redis_queue_beside_the_driver_alone(redis_url: str, tmp_path: Path) -> None:
    ratios = compare(redis_url, tmp_path, 500)
    assert ratios["claim 100"] > 0.7
    assert ratios["enqueue"] > 0.05


@pytest.mark.long
def test_the_redis_queue_beside_the_driver_alone_in_full(redis_url: str, tmp_path: Path) -> None:
    # Several rounds: on a shared machine one side of a round may have had less of the processor.
    rounds = []
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        rounds.append(compare(redis_url, folder, 3_000))
        with closing(redis.Redis.from_url(redis_url)) as client:
            client.flushdb()
    best = {name: max(ratios[name] for ratios in rounds) for name in rounds[0]}
    assert best["claim 100"] > 2
    assert best["worker"] > 0.7, "a whole worker keeps pace with a bare claim-and-remove loop"
