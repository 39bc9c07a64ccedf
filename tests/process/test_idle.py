"""An idle worker costs next to nothing, and wakes at once."""

from __future__ import annotations

import statistics

from tests.process.rounds import describe, measure_idle, wake_up_latencies


def test_idle_costs_next_to_nothing(new_project, dsn, request):
    project = new_project(dsn)
    worker = project.worker()
    postgres = project.store.dialect == "postgresql"
    admin = request.getfixturevalue("postgres_server").admin_dsn() if postgres else None

    idle = measure_idle(project, [worker], 8, admin)

    print(idle)
    assert idle.cpu_percent < 0.5
    assert idle.transactions_per_second is None or idle.transactions_per_second < 2
    assert worker.trouble() == []


def test_a_job_starts_at_once_on_an_idle_worker(new_project, dsn):
    project = new_project(dsn)
    project.worker()

    latencies = wake_up_latencies(project, 31)

    print(describe(latencies))
    assert statistics.median(latencies) < 0.020
