"""A deploy costs nothing: SIGTERM finishes what is short, gives back what is not, and is over in time."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.waiting import eventually

GRACE = 2
RELEASED_AFTER = GRACE + 2.0
GONE_AFTER = GRACE + 4.0


def released(row):
    return row is not None and row.status == "pending"


def wait_until_released(project, job_id, since):
    """The job is pending again within the time promised, counted from the signal; return its row."""
    row = project.wait_until(job_id, released, RELEASED_AFTER, "the release")
    assert time.monotonic() - since <= RELEASED_AFTER
    return row


def wait_until_gone(worker, since):
    """The process ends by itself within the time promised, exit code 0."""
    assert worker.wait(GONE_AFTER + 1) == 0
    assert time.monotonic() - since <= GONE_AFTER


def test_the_short_job_finishes_and_the_long_one_is_given_back(new_project, dsn):
    project = new_project(dsn)
    [short] = project.enqueue("quick", {"seconds": 1})
    [long] = project.enqueue("blocked")
    worker = project.worker("--threads", "2", "--grace", str(GRACE))
    project.wait_for("start", [short, long])

    since = worker.terminate()
    row = wait_until_released(project, long, since)
    wait_until_gone(worker, since)

    assert row.attempts == 0
    assert row.error is None
    project.assert_once([short])
    assert project.starts() == {short: 1, long: 1}


def test_what_a_drain_gave_back_runs_elsewhere_with_all_its_attempts(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn, max_attempts=1)
    [job] = project.enqueue("blocked_first")
    first = project.worker("--grace", "0")
    project.wait_for("start", [job])
    since = first.terminate()
    wait_until_gone(first, since)

    project.drain()

    project.assert_once([job])
    assert [event.attempts for event in project.events("start")] == [1, 1]


def test_every_thread_is_blocked_and_jobs_wait_behind(new_project, dsn):
    project = new_project(dsn)
    jobs = project.enqueue("blocked", count=12)
    worker = project.worker("--threads", "4", "--grace", "1")
    eventually(lambda: len(project.starts()), until=lambda count: count == 4, what="four starts")

    since = worker.terminate()
    eventually(lambda: project.store.jobs("running"), 3, until=lambda rows: not rows, what="every job to be released")
    assert time.monotonic() - since <= 3
    wait_until_gone(worker, since)

    assert {row.id: row.attempts for row in project.store.jobs("pending")} == dict.fromkeys(jobs, 0)


def test_a_second_sigterm_ends_the_wait(new_project, dsn):
    project = new_project(dsn)
    [job] = project.enqueue("blocked")
    worker = project.worker("--grace", "60")
    project.wait_for("start", [job])

    worker.terminate()
    worker.wait_for_log(r"(?i)stop|drain|signal")
    since = worker.terminate()

    worker.wait(4)
    assert time.monotonic() - since <= 3
    row = project.store.job(job)
    assert (row.status, row.attempts) == ("pending", 0)


def test_a_handler_that_asks_ends_as_soon_as_it_is_told(new_project, dsn):
    project = new_project(dsn)
    [job] = project.enqueue("waits_for_stop")
    worker = project.worker("--grace", "1")
    project.wait_for("start", [job])

    since = worker.terminate()
    project.wait_for("end", [job])
    wait_until_gone(worker, since)

    assert (project.store.job(job).status, project.store.job(job).attempts) == ("pending", 0)


def test_what_a_blocked_handler_wrote_is_not_there_after_a_drain(new_project, dsn):
    project = new_project(dsn)
    [job] = project.enqueue("writes_then_sleeps")
    worker = project.worker("--grace", str(GRACE))
    project.wait_for("wrote", [job])

    since = worker.terminate()
    row = wait_until_released(project, job, since)
    wait_until_gone(worker, since)

    assert row.attempts == 0
    assert project.store.effects() == {}


def test_an_idle_worker_stops_at_once(new_project, dsn):
    project = new_project(dsn)
    [job] = project.enqueue("quick")
    worker = project.worker()
    project.wait_until_done([job])

    since = worker.terminate()

    assert worker.wait(5) == 0
    assert time.monotonic() - since <= 2
    assert worker.trouble() == []


@pytest.mark.parametrize("processes", ["1", "2"])
def test_one_ctrl_c_in_the_terminal_is_a_clean_drain(new_project, sqlite_dsn, processes):
    project = new_project(sqlite_dsn)
    jobs = project.enqueue("quick", {"seconds": 1}, count=4)
    worker = project.worker("--threads", "2", "--processes", processes, "--grace", "10")
    project.wait_for("start", jobs[:2])

    worker.press_ctrl_c()

    assert worker.wait(14) == 0
    assert project.store.jobs("running") == []
    assert {row.attempts for row in project.store.jobs()} <= {0}
    started = list(project.starts())
    project.assert_once(started)


def stop_at_random_moments(project, runs, seed):
    """Jobs, a worker, SIGTERM at a random moment; again and again on one queue, then a last worker for the rest."""
    draw = random.Random(seed)
    jobs = []
    for _ in range(runs):
        jobs += project.enqueue("quick", {"seconds": 0.02}, count=50)
        before = len(project.events("start"))
        worker = project.worker("--threads", "4", "--grace", "5")
        eventually(lambda: len(project.events("start")), 20, until=before.__lt__, what="a first start")
        # Not a wait for anything: the moment of the signal is what is drawn.
        time.sleep(draw.uniform(0, 0.5))
        worker.terminate()
        assert worker.wait(9) == 0, worker.log

        assert project.store.jobs("running") == []
        starts, effects = project.starts(), project.store.effects()
        left = {row.id: row.attempts for row in project.store.jobs()}
        assert set(left.values()) <= {0}
        assert set(left).isdisjoint(starts)
        assert {job for job in jobs if job not in left} == set(effects) == set(starts)
        assert worker.trouble() == []
    project.drain("--threads", "4")
    project.assert_once(jobs)
    assert set(project.starts().values()) == {1}


def test_sigterm_at_random_moments_loses_nothing_and_repeats_nothing(new_project, dsn):
    stop_at_random_moments(new_project(dsn), runs=3, seed=56)


def test_sigterm_before_the_worker_works_is_no_trouble(new_project, postgres_dsn):
    project = new_project(postgres_dsn)
    jobs = project.enqueue("quick", count=5)
    for number in range(5):
        worker = project.worker()
        time.sleep(0.15 * number)  # the moment of the signal, not a wait for anything
        worker.send(signal.SIGTERM)
        assert worker.wait(8) in (0, -signal.SIGTERM)
        assert project.store.jobs("running") == []
    project.drain()
    project.assert_once(jobs)
