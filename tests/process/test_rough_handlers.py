"""Handlers that are rough with their process: they spin, leave, change the folder; the worker keeps its promises."""

from __future__ import annotations

import time

import pytest

from tests.waiting import eventually


def test_every_thread_computes_without_end_and_the_drain_is_over_in_time(new_project, dsn):
    project = new_project(dsn)
    jobs = project.enqueue("spins", count=8)
    worker = project.worker("--threads", "8", "--grace", "1")
    project.wait_for("start", jobs, 30)

    since = worker.terminate()
    eventually(lambda: project.store.jobs("running"), 6, until=lambda rows: not rows, what="every release")
    released = time.monotonic() - since
    assert worker.wait(8) == 0
    gone = time.monotonic() - since

    print(f"released after {released:.1f} s, gone after {gone:.1f} s")
    assert released <= gone <= 1 + 4
    assert {(row.status, row.attempts) for row in project.store.jobs()} == {("pending", 0)}


def test_leases_are_renewed_while_every_thread_computes(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=2)
    jobs = project.enqueue("spins", {"listens": True}, count=8)
    worker = project.worker("--threads", "8", "--grace", "3")
    project.wait_for("start", jobs, 30)
    other = project.worker("--threads", "1")
    time.sleep(5)  # two leases and a half: what is tried

    assert len(project.store.jobs("running")) == 8
    assert set(project.starts().values()) == {1}
    assert other.running
    worker.terminate()
    assert worker.wait(10) == 0


def test_a_handler_that_changes_the_folder_does_not_move_the_database(new_project, sqlite_path):
    project = new_project(f"sqlite:///{sqlite_path}")
    text = (project.folder / "jfast.toml").read_text().replace(f"sqlite:///{sqlite_path}", "sqlite:///../jobs.db")
    (project.folder / "jfast.toml").write_text(text)
    jobs = project.enqueue("changes_folder", count=20)
    worker = project.worker("--threads", "4")

    project.wait_until_done(jobs)

    project.assert_once(jobs)
    assert worker.running


@pytest.mark.parametrize("how", ["exit", "interrupt", "generator"])
def test_a_handler_that_leaves_by_another_door_has_failed_and_the_thread_goes_on(new_project, dsn, how):
    project = new_project(dsn, max_attempts=2, backoff_base=0)
    jobs = project.enqueue("leaves", {"how": how}, count=3)
    worker = project.worker("--threads", "1")

    for job in jobs:
        assert project.wait_until_dead(job).attempts == 2
    [next_one] = project.enqueue("quick")
    project.wait_until_done([next_one])

    assert project.store.effects() == {next_one: 1}
    assert worker.running
