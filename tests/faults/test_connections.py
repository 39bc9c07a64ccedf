"""The network between the workers and PostgreSQL: cut, silent, and a COMMIT whose answer never arrives."""

from __future__ import annotations

import time

from tests.faults.load import assert_nothing_lost, load
from tests.waiting import eventually

LEASE = 3


def project_behind(proxy, postgres_server, postgres_dsn, new_project, **queue):
    """Workers reach the database through the proxy, the test directly."""
    between = proxy(postgres_server.port)
    return between, new_project(between.dsn(postgres_dsn), enqueue_dsn=postgres_dsn, **queue)


def test_connections_cut_under_load(new_project, proxy, postgres_server, postgres_dsn):
    between, project = project_behind(
        proxy, postgres_server, postgres_dsn, new_project, visibility_timeout=LEASE, max_attempts=10
    )
    workers = [project.worker("--threads", "4") for _ in range(2)]
    with load(project) as running:
        for _ in range(8):
            running.wait_for_more(30)
            between.cut()
        running.wait_for_more(30)
    assert_nothing_lost(project, workers, running.stop())


def test_a_refused_connection_for_a_while(new_project, proxy, postgres_server, postgres_dsn):
    between, project = project_behind(
        proxy, postgres_server, postgres_dsn, new_project, visibility_timeout=LEASE, max_attempts=10
    )
    workers = [project.worker("--threads", "4")]
    with load(project) as running:
        running.wait_for_more(50)
        between.refuse()
        between.cut()
        running.wait_for_more(200)
        between.restore()
    assert_nothing_lost(project, workers, running.stop())


def test_a_silent_network_for_longer_than_a_lease(new_project, proxy, postgres_server, postgres_dsn):
    between, project = project_behind(
        proxy, postgres_server, postgres_dsn, new_project, visibility_timeout=LEASE, max_attempts=10
    )
    behind = project.worker("--threads", "4")
    with load(project) as running:
        running.wait_for_more(50)
        between.stall()
        time.sleep(LEASE + 2)  # the length of the fault
        between.restore()
        running.wait_for_more(50)
    assert_nothing_lost(project, [behind], running.stop())


def test_a_lost_answer_to_a_commit_changes_nothing(new_project, proxy, postgres_server, postgres_dsn):
    between, project = project_behind(
        proxy, postgres_server, postgres_dsn, new_project, visibility_timeout=LEASE, max_attempts=10
    )
    workers = [project.worker("--threads", "2")]
    [warm] = project.enqueue("quick")
    project.wait_until_done([warm])
    jobs = [warm]
    for count in range(1, 6):
        [job] = project.enqueue("paused_before_write", {"gate": f"g{count}"})
        project.wait_for("start", [job])
        between.swallow_next_reply(b"COMMIT")
        project.open_gate(f"g{count}")
        eventually(lambda: between.swallowed, 20, until=count.__le__, what="a lost answer")
        project.wait_until_done([job], 20)
        jobs.append(job)
    assert_nothing_lost(project, workers, jobs)


def test_sigterm_on_a_silent_network_ends_in_time(new_project, proxy, postgres_server, postgres_dsn):
    between, project = project_behind(proxy, postgres_server, postgres_dsn, new_project, visibility_timeout=LEASE)
    jobs = project.enqueue("blocked_first", count=2)
    worker = project.worker("--threads", "2", "--grace", "1")
    project.wait_for("start", jobs)
    between.stall()

    since = worker.terminate()
    worker.wait(8)

    assert time.monotonic() - since <= 1 + 4
    between.restore()
