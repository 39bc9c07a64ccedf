"""The full rounds of what the process tests try briefly; `tox -e faults` runs them."""

from __future__ import annotations

import statistics

import pytest

from tests.process.rounds import describe, many_workers, measure_idle, wake_up_latencies
from tests.process.test_stop import stop_at_random_moments

pytestmark = pytest.mark.long


def test_eight_processes_of_eight_threads(new_project, dsn):
    rate = many_workers(new_project(dsn), jobs=5000, processes=8, threads=8, timeout=180)

    print(f"{rate:.0f} jobs/s")


def test_fifty_stops_at_random_moments(new_project, dsn):
    stop_at_random_moments(new_project(dsn), runs=50, seed=650)


def test_idle_for_half_a_minute(new_project, sqlite_dsn, postgres_dsn, postgres_server):
    projects = [new_project(sqlite_dsn), new_project(postgres_dsn)]

    for idle in measure_idle(projects, 30, postgres_server.admin_dsn()):
        print(idle)
        assert idle.cpu_percent < 0.5
        assert idle.transactions_per_second < 2


def test_two_hundred_wake_ups(new_project, dsn):
    project = new_project(dsn)
    project.worker()

    latencies = wake_up_latencies(project, 200)

    print(describe(latencies))
    assert statistics.median(latencies) < 0.020
