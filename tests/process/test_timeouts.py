"""A job past its time: it is told, then its connection is closed, and its slot works again."""

from __future__ import annotations

import time

from tests.waiting import eventually


def test_a_handler_that_wrote_and_sleeps_is_given_up_on_time(new_project, dsn):
    project = new_project(dsn, job_timeout=1, max_attempts=1)
    [job] = project.enqueue("writes_then_sleeps")
    worker = project.worker("--threads", "1")
    project.wait_for("wrote", [job])
    wrote = time.monotonic()

    row = project.wait_until_dead(job, 8)

    assert time.monotonic() - wrote <= 1 + 2 + 1
    assert "TimeoutError: ran longer than 1 s" in row.error
    assert project.store.effects() == {}
    # Its slot was replaced: the only thread's successor works.
    [next_one] = project.enqueue("quick")
    project.wait_until_done([next_one], 10)
    project.assert_once([next_one])
    assert worker.running


def test_the_attempt_after_a_timeout_is_not_blocked_by_the_one_before(new_project, postgres_dsn):
    project = new_project(postgres_dsn, job_timeout=1, max_attempts=2, backoff_base=0)
    [job] = project.enqueue("writes_then_sleeps")
    project.worker("--threads", "4")

    row = project.wait_until_dead(job, 15)

    assert project.starts()[job] == 2
    assert row.attempts == 2
    assert project.store.effects() == {}


def test_a_worker_with_too_many_threads_that_ignore_their_timeout_ends_itself(new_project, dsn):
    project = new_project(dsn, job_timeout=1, max_attempts=1)
    jobs = project.enqueue("blocked", count=8)
    worker = project.worker("--threads", "4", "--grace", "1")

    assert worker.wait(30) != 0

    assert project.store.jobs("running") == []
    assert len(project.starts()) >= 3
    dead = {row.id for row in project.store.jobs("dead")}
    started = set(project.starts())
    assert dead <= started
    assert {row.id for row in project.store.jobs()} == set(jobs)
    assert {row.attempts for row in project.store.jobs("pending")} <= {0}


def test_a_lease_is_renewed_for_as_long_as_the_job_runs(new_project, dsn):
    project = new_project(dsn, visibility_timeout=1)
    [job] = project.enqueue("quick", {"seconds": 4})
    first, second = project.worker("--threads", "2"), project.worker("--threads", "2")

    project.wait_until_done([job], 20)

    project.assert_once([job])
    assert project.starts()[job] == 1
    assert eventually(lambda: first.running and second.running)
