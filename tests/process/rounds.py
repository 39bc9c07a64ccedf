"""Rounds that run short in the default tests and in full under `tox -e faults`."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from tests.process.project import Project
from tests.process.workers import WorkerProcess
from tests.waiting import eventually


def many_workers(project: Project, *, jobs: int, processes: int, threads: int, timeout: float) -> float:
    """All workers on one queue while the jobs are being enqueued; return jobs per second.

    Every effect exactly once, every job started once, nothing unusual said by anybody.
    """
    workers = [project.worker("--threads", str(threads)) for _ in range(processes)]
    began = time.monotonic()
    ids: list[str] = []
    while len(ids) < jobs:
        ids += project.enqueue("quick", count=min(100, jobs - len(ids)))
    eventually(project.store.unfinished, timeout, until=lambda left: left == 0, what="all jobs done", interval=0.2)
    took = time.monotonic() - began
    for worker in workers:
        worker.terminate()
    codes = [worker.wait(15) for worker in workers]

    assert codes == [0] * processes
    project.assert_once(ids)
    assert len(project.store.effects()) == jobs
    assert set(project.starts().values()) == {1}
    assert [line for worker in workers for line in worker.trouble()] == []
    return jobs / took


# PostgreSQL's backends report what they did within ten seconds of becoming idle.
_COUNTED_AFTER = 10.5


@dataclass(frozen=True)
class Idle:
    """What an idle worker costs: percent of a core, and on PostgreSQL transactions (0 on SQLite)."""

    dialect: str
    cpu_percent: float
    transactions_per_second: float


def measure_idle(projects: list[Project], seconds: float, admin_dsn: str) -> list[Idle]:
    """Leave an idle worker of each project alone for a while, side by side; return what each of them cost."""
    workers = [project.worker() for project in projects]
    for project in projects:
        [warm] = project.enqueue("quick")
        project.wait_until_done([warm])
        # The client's own connections would count as well.
        assert project.jfast.database is not None
        project.jfast.database.dispose()
    time.sleep(_COUNTED_AFTER)  # nothing says when a backend has reported what it did
    _wait_until_idle(workers)
    transactions = [_transactions(project, admin_dsn) for project in projects]
    before, began = [worker.cpu_seconds() for worker in workers], time.monotonic()
    time.sleep(seconds)  # the stretch of time that is measured
    took = time.monotonic() - began
    after = [worker.cpu_seconds() for worker in workers]
    made = [_transactions(project, admin_dsn) for project in projects]
    assert [line for worker in workers for line in worker.trouble()] == []
    return [
        Idle(project.store.dialect, 100 * (cpu_after - cpu) / took, (now - then) / took)
        for project, cpu, cpu_after, then, now in zip(projects, before, after, transactions, made, strict=True)
    ]


def _wait_until_idle(workers: list[WorkerProcess]) -> None:
    """Wait until workers have finished starting: half a second in which none used a tenth of a core."""

    def used() -> float:
        before = [worker.cpu_seconds() for worker in workers]
        time.sleep(0.5)  # the stretch of time that is measured
        return max(worker.cpu_seconds() - cpu for worker, cpu in zip(workers, before, strict=True))

    eventually(used, 20, until=lambda cpu: cpu < 0.05, what="the workers to be idle")


def _transactions(project: Project, admin_dsn: str) -> int:
    """Transactions of the project's database so far, asked from another one so as not to count."""
    if project.store.dialect == "sqlite":
        return 0
    import psycopg

    name = project.store.dsn.rsplit("/", 1)[1]
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        row: Any = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", (name,)
        ).fetchone()
    return int(row[0])


def wake_up_latencies(project: Project, samples: int) -> list[float]:
    """Seconds from before the enqueue to the first line of the handler in an idle worker process."""
    latencies = []
    [warm] = project.enqueue("plain")
    project.wait_until_done([warm])
    for _ in range(samples):
        before = time.monotonic_ns()
        [job] = project.enqueue("plain")
        [event] = project.wait_for("start", [job])
        latencies.append((event.at - before) / 1e9)
        project.wait_until_done([job])
    return latencies


def describe(latencies: list[float]) -> str:
    """The median and the worst, in milliseconds."""
    return f"median {statistics.median(latencies) * 1e3:.1f} ms, worst {max(latencies) * 1e3:.1f} ms"
