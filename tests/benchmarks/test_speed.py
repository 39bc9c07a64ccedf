"""First figures: no-op jobs through one worker, beside the driver alone, in the same run.

Only ratios are asserted, and loosely: they hold on a loaded machine. The figures are printed (``tox -e bench``).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jfast_sync import JFast, Job
from jfast_sync.config import load_config
from jfast_sync.tasks.registry import Registry
from tests.benchmarks import raw

pytestmark = pytest.mark.timed

THREADS = 8


def app_on(dsn: str, folder: Path) -> JFast:
    """Build an app whose one task does nothing."""
    (folder / "jfast.toml").write_text("")
    config = load_config(folder, environ={}, overrides={"database": {"dsn": dsn}})
    tasks = Registry()

    @tasks.task("bench.noop")
    def noop(payload: dict[str, int]) -> None:
        pass

    return JFast(config, tasks=tasks, threads=THREADS)


def drained(app: JFast) -> float:
    """Run one worker over everything that is queued; return the seconds it took."""
    worker = app.worker(threads=THREADS, drain=True)
    began = time.perf_counter()
    assert worker.run() == 0
    return time.perf_counter() - began


def compare(dsn: str, folder: Path, jobs: int) -> dict[str, float]:
    """Measure both on one database; return jobs per second."""
    raw_enqueue = raw.enqueue_one_by_one(dsn, jobs)
    raw_drain = raw.drain(dsn, THREADS)
    with app_on(dsn, folder) as app:
        app.setup()
        began = time.perf_counter()
        for number in range(jobs):
            app.queue.enqueue(Job(task="bench.noop", payload={"n": number}))
        ours_enqueue = time.perf_counter() - began
        ours_drain = drained(app)
        assert app.queue.stats().done_by_task == {"bench.noop": jobs}
    figures = {
        "raw enqueue": jobs / raw_enqueue,
        "enqueue": jobs / ours_enqueue,
        "raw drain": jobs / raw_drain,
        "drain": jobs / ours_drain,
    }
    for name, figure in figures.items():
        print(f"{name:12} {figure:10,.0f} jobs/s")
    print(
        f"{'ratio':12} enqueue {figures['enqueue'] / figures['raw enqueue']:.2f}, "
        f"drain {figures['drain'] / figures['raw drain']:.2f}"
    )
    return figures


def test_noop_jobs_beside_the_driver_alone(postgres_dsn: str, tmp_path: Path) -> None:
    figures = compare(postgres_dsn, tmp_path, 1_000)
    # Most of so short a run is the worker's start, and one stall of the machine weighs as much: the long one compares.
    assert figures["drain"] > figures["raw drain"] / 4
    assert figures["enqueue"] > figures["raw enqueue"] / 20


@pytest.mark.long
def test_noop_jobs_beside_the_driver_alone_in_full(postgres_dsn: str, tmp_path: Path) -> None:
    figures = compare(postgres_dsn, tmp_path, 20_000)
    assert figures["drain"] > figures["raw drain"], "one worker must drain faster than a claim-and-delete loop"
    assert figures["enqueue"] > figures["raw enqueue"] / 20
