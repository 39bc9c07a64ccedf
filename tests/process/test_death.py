"""Workers that die: what they held is run by others, and a job that kills its worker is started max_attempts times."""

from __future__ import annotations

import time
from functools import partial

from tests.waiting import eventually

LEASE = 2


def restart_until_settled(project, job_id, *arguments, workers=10):
    """What a supervisor does: start a worker as often as one dies, until the job is dead or gone."""
    for _ in range(workers):
        worker = project.worker(*arguments)
        if eventually(partial(_outcome, project, job_id, worker), 30, what="the worker's end or the job's") == "dead":
            return worker
    raise AssertionError(f"{workers} workers died of one job")


def _outcome(project, job_id, worker):
    if project.store.job(job_id).status == "dead":
        return "dead"
    return "" if worker.running else "ended"


def test_what_a_killed_worker_held_is_finished_by_another_within_a_lease(new_project, dsn):
    project = new_project(dsn, visibility_timeout=LEASE)
    jobs = project.enqueue("blocked_first", count=8)
    victim = project.worker("--threads", "8")
    project.wait_for("start", jobs)
    [warm] = project.enqueue("quick")
    other = project.worker("--threads", "8")
    project.wait_until_done([warm])

    killed = time.monotonic()
    victim.kill()
    project.wait_until_done(jobs, LEASE + 3)
    took = time.monotonic() - killed

    assert took <= LEASE + 2
    project.assert_once(jobs)
    assert set(project.starts().values()) == {1, 2}
    assert other.running


def test_nobody_is_there_for_three_leases_and_then_one_comes(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=1)
    jobs = project.enqueue("blocked_first", count=4)
    victim = project.worker("--threads", "4")
    project.wait_for("start", jobs)
    victim.kill()
    time.sleep(3)  # three leases without anybody: the passing of time is what is tried

    project.worker("--threads", "4")
    project.wait_until_done(jobs, 10)

    project.assert_once(jobs)


def test_a_job_that_kills_its_process_is_started_max_attempts_times(new_project, dsn):
    project = new_project(dsn, visibility_timeout=1, max_attempts=3)
    [job] = project.enqueue("bomb", {"status": 7})

    last = restart_until_settled(project, job)

    row = project.wait_until_dead(job)
    assert project.starts()[job] == 3
    assert row.attempts == 3
    assert "worker died" in row.error.lower()
    assert "7" in row.error
    assert last.running


def test_the_dead_letter_names_the_signal_that_killed_its_process(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=1, max_attempts=2)
    [job] = project.enqueue("bomb", {"signal": "SIGKILL"})

    restart_until_settled(project, job)

    row = project.wait_until_dead(job)
    assert project.starts()[job] == 2
    assert "worker died" in row.error.lower()
    assert "SIGKILL" in row.error


def test_a_job_allowed_one_start_that_kills_its_process_is_started_once_more_alone(new_project, sqlite_dsn):
    """Without an earlier start there is no suspicion yet, and a lapse alone never condemns (docs/decisions)."""
    project = new_project(sqlite_dsn, visibility_timeout=1, max_attempts=1)
    [job] = project.enqueue("bomb")

    restart_until_settled(project, job)

    row = project.wait_until_dead(job)
    assert project.starts()[job] == 2
    assert row.attempts == 1


def test_the_supervisor_restarts_what_a_bomb_killed(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn, visibility_timeout=1, max_attempts=3)
    [bomb] = project.enqueue("bomb")
    others = project.enqueue("quick", {"seconds": 0.05}, count=20)
    worker = project.worker("--processes", "2", "--threads", "2")

    row = project.wait_until_dead(bomb, 40)
    project.wait_until_done(others)

    assert project.starts()[bomb] == 3
    assert row.attempts == 3
    project.assert_once(others)
    worker.terminate()
    assert worker.wait(8) == 0


def test_the_neighbours_of_a_bomb_are_not_condemned(new_project, dsn):
    project = new_project(dsn, visibility_timeout=1, max_attempts=3)
    neighbours = project.enqueue("blocked_first", count=7)
    [bomb] = project.enqueue("bomb", {"gate": "seven"})
    first = project.worker("--threads", "8")
    project.wait_for("start", [*neighbours, bomb])
    project.open_gate("seven")
    first.wait(10)

    last = restart_until_settled(project, bomb, "--threads", "8")

    project.wait_until_done(neighbours)
    project.wait_until_dead(bomb)
    assert project.starts()[bomb] == 3
    project.assert_once(neighbours)
    assert project.store.jobs("dead") == [project.store.job(bomb)]
    assert last.running


def test_a_job_met_by_three_dying_workers_is_not_condemned(new_project, sqlite_dsn):
    """Killed from outside three times, it has its last start alone - and ends well."""
    project = new_project(sqlite_dsn, visibility_timeout=1, max_attempts=3)
    [job] = project.enqueue("plain", {"seconds": 0.8})
    for count in (1, 2):
        worker = project.worker()
        eventually(lambda: project.starts()[job], 15, until=count.__eq__, what=f"start {count}")
        worker.kill()

    project.worker()

    project.wait_until_done([job], 15)
    assert project.starts()[job] == 3
