"""A worker whose clock is an hour wrong: PostgreSQL's decides, so nothing starts early and nothing is stolen."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from tests.waiting import eventually

_FOLDER = Path(__file__).parent / "shifted_clock"


def shifted_worker(project, seconds, *arguments):
    path = os.pathsep.join(filter(None, [str(_FOLDER), os.environ.get("PYTHONPATH")]))
    worker = project.worker(*arguments, PYTHONPATH=path, CLOCK_SHIFT=str(seconds))
    worker.wait_for_log(f"clock shifted by {seconds} s")
    return worker


def test_a_worker_an_hour_ahead_starts_nothing_early_and_steals_nothing(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=3)
    [later] = project.enqueue("quick", delay=timedelta(minutes=10))
    [held] = project.enqueue("plain", {"gate": "held"})
    holder = project.worker("--threads", "1")
    project.wait_for("start", [held])

    ahead = shifted_worker(project, 3600, "--threads", "2")
    due = project.enqueue("quick", {"seconds": 0.2}, count=20)
    project.wait_until_done(due, 20)
    # It has looked for lapsed leases several times by now: it does so at least once a second when idle.
    _wait_for_polls(project, ahead, 4)

    assert project.store.job(later).attempts == 0
    assert project.starts()[held] == 1
    assert project.store.job(held).status == "running"
    project.open_gate("held")
    project.wait_until_done([held])
    assert project.starts()[held] == 1
    assert {event.pid for event in project.events("start")} == {holder.pid, ahead.pid}


def _wait_for_polls(project, worker, count):
    """Wait until the database has seen the worker's claiming connection become idle again a number of times."""
    seen: set[object] = set()

    def polls():
        rows = project.store.rows(
            "SELECT state_change FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state = 'idle' AND query = 'COMMIT'"
        )
        seen.update(row[0] for row in rows)
        return len(seen)

    eventually(polls, 20, until=lambda number: number >= count, what=f"{count} polls of {worker.name}")


def test_a_worker_an_hour_behind_starts_due_jobs_at_once(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=3)
    [job] = project.enqueue("quick")
    worker = shifted_worker(project, -3600, "--threads", "2")

    project.wait_until_done([job], 10)
    failing = project.enqueue("fails", max_attempts=1)
    project.wait_until_dead(failing[0])

    project.assert_once([job])
    assert worker.running
