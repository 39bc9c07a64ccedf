"""`--drain`, `--max-jobs`, `--processes`: when a worker ends by itself, and what becomes of its children."""

from __future__ import annotations

import time

import psutil

from tests.waiting import eventually


def test_drain_ends_when_the_queue_is_empty(new_project, dsn):
    project = new_project(dsn, backoff_base=0.2)
    good = project.enqueue("quick", count=30)
    bad = project.enqueue("fails", count=3)

    project.drain()

    project.assert_once(good)
    assert {row.id for row in project.store.jobs("dead")} == set(bad)
    assert {row.attempts for row in project.store.jobs("dead")} == {3}


def test_drain_on_an_empty_queue_ends_at_once(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn)
    project.drain(timeout=10)


def test_drain_waits_for_what_another_worker_runs(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=1)
    [job] = project.enqueue("blocked_first")
    other = project.worker()
    project.wait_for("start", [job])
    draining = project.worker("--drain")

    other.kill()

    assert draining.wait(20) == 0
    project.assert_once([job])


def test_max_jobs_ends_after_that_many_starts(new_project, dsn):
    project = new_project(dsn)
    jobs = project.enqueue("quick", count=30)

    worker = project.worker("--max-jobs", "7", "--threads", "4")

    assert worker.wait(20) == 0
    assert sum(project.starts().values()) == 7
    left = project.store.jobs()
    assert len(left) == 23
    assert {(row.status, row.attempts) for row in left} == {("pending", 0)}
    project.drain()
    project.assert_once(jobs)


def test_only_the_named_queues_are_served(new_project, dsn):
    project = new_project(dsn)
    mail = project.enqueue("quick", count=3, queue="mail")
    other = project.enqueue("quick", count=3)

    project.drain("--queues", "mail")

    project.assert_once(mail)
    assert {row.id for row in project.store.jobs()} == set(other)
    assert set(project.starts()) == set(mail)


def test_a_killed_child_is_replaced(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=1)
    worker = project.worker("--processes", "2", "--threads", "2")
    first = _wait_for_two_working(project)
    jobs = project.enqueue("blocked_first", count=1)
    [start] = project.wait_for("start", jobs)

    psutil.Process(start.pid).kill()

    project.wait_until_done(jobs, 15)
    project.assert_once(jobs)
    second = _wait_for_two_working(project, first - {start.pid})
    assert start.pid not in second
    assert worker.running
    worker.terminate()
    assert worker.wait(10) == 0


def _wait_for_two_working(project, known=frozenset()):
    """Enqueue until two processes have started jobs; return their ids. `known` ones count from before."""
    asked = len(project.events("start"))

    def working():
        project.enqueue("plain", {"seconds": 0.05}, count=4)
        return known | {event.pid for event in project.events("start")[asked:]}

    return eventually(working, 20, until=lambda pids: len(pids) >= 2, what="two processes to work", interval=0.1)


def test_sigterm_to_the_supervisor_drains_all(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn)
    worker = project.worker("--processes", "2", "--threads", "2", "--grace", "1")
    _wait_for_two_working(project)
    blocked = project.enqueue("blocked", count=4)
    project.wait_for("start", blocked)

    since = worker.terminate()

    assert worker.wait(7) == 0
    assert time.monotonic() - since <= 5
    assert {(row.status, row.attempts) for row in project.store.jobs()} == {("pending", 0)}
    assert worker.children() == []


def test_children_do_not_outlive_their_supervisor(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=1)
    worker = project.worker("--processes", "2", "--threads", "2", "--grace", "1")
    _wait_for_two_working(project)
    children = worker.children()
    blocked = project.enqueue("blocked", count=2)
    project.wait_for("start", blocked)

    worker.kill_only()

    _gone, alive = psutil.wait_procs(children, timeout=8)
    assert alive == []
    assert {(row.status, row.attempts) for row in project.store.jobs() if row.id in blocked} == {("pending", 0)}


def test_the_drain_of_several_processes_ends(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn)
    jobs = project.enqueue("quick", {"seconds": 0.02}, count=60)

    project.drain("--processes", "2", "--threads", "2")

    project.assert_once(jobs)
