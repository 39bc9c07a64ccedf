"""An idle worker costs next to nothing, and wakes at once."""

from __future__ import annotations

import statistics

import pytest

from tests.process.rounds import describe, measure_idle, wake_up_latencies


def test_idle_costs_next_to_nothing(new_project, sqlite_dsn, postgres_dsn, postgres_server):
    projects = [new_project(sqlite_dsn), new_project(postgres_dsn)]

    for idle in measure_idle(projects, 8, postgres_server.admin_dsn()):
        print(idle)
        assert idle.cpu_percent < 0.5
        assert idle.transactions_per_second < 2


@pytest.mark.timed
def test_a_job_starts_at_once_on_an_idle_worker(new_project, dsn):
    project = new_project(dsn)
    project.worker()

    latencies = wake_up_latencies(project, 31)

    print(describe(latencies))
    assert statistics.median(latencies) < 0.020
