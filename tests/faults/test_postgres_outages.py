"""PostgreSQL restarted, killed, read-only, locked and renamed away under load: the same workers finish everything."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.faults.load import assert_nothing_lost, load
from tests.waiting import eventually

LEASE = 3


@pytest.fixture
def database(killable_postgres_dsn, killable_postgres):
    """The server's superuser on this test's database, in autocommit mode; run one statement on a fresh connection."""
    name = killable_postgres_dsn.rsplit("/", 1)[1]

    def execute(statement, on=name):
        with psycopg.connect(killable_postgres.admin_dsn(on), autocommit=True) as connection:
            cursor = connection.execute(statement.format(name=name))
            return cursor.fetchall() if cursor.description else []

    return execute


def terminate_backends(database):
    return database(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = '{name}' AND pid <> pg_backend_pid()",
        on="postgres",
    )[0][0]


@pytest.mark.parametrize("fault", ["restart", "kill"])
def test_the_server_goes_down_under_load_and_comes_back(new_project, killable_postgres, killable_postgres_dsn, fault):
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE, max_attempts=5)
    workers = [project.worker("--threads", "4") for _ in range(2)]
    with load(project) as running:
        running.wait_for_more(100)
        if fault == "kill":
            killable_postgres.kill()
        else:
            killable_postgres.stop()
        refused = running.refused
        eventually(lambda: running.refused > refused + 3, 20, what="the client to be refused")
        killable_postgres.start()
        running.wait_for_more(100)
    assert_nothing_lost(project, workers, running.stop())


def test_backends_terminated_under_load(new_project, killable_postgres_dsn, database):
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE, max_attempts=5)
    workers = [project.worker("--threads", "4") for _ in range(2)]
    with load(project) as running:
        for _ in range(5):
            running.wait_for_more(40)
            assert terminate_backends(database) > 0
        running.wait_for_more(40)
    assert_nothing_lost(project, workers, running.stop())


def test_backends_terminated_while_a_handler_without_session_runs_cost_it_no_start(
    new_project, killable_postgres_dsn, database
):
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE)
    [job] = project.enqueue("plain", {"gate": "open"})
    worker = project.worker()
    project.wait_for("start", [job])
    for _ in range(2):
        assert terminate_backends(database) > 0
        # Longer than a beat of the lease: it has been renewed over a new connection, or it lapses.
        time.sleep(LEASE)  # the length of the fault
    project.open_gate("open")

    project.wait_until_done([job], 20)

    assert project.starts()[job] == 1
    assert worker.running


def test_a_read_only_database_that_takes_writes_again(new_project, killable_postgres_dsn, database):
    """As after a failover: the connections live on, and nobody terminates them when writes are allowed again."""
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE, max_attempts=5)
    workers = [project.worker("--threads", "4")]
    with load(project) as running:
        running.wait_for_more(50)
        database("ALTER DATABASE {name} SET default_transaction_read_only = on", on="postgres")
        terminate_backends(database)
        time.sleep(5)  # the length of the fault
        database("ALTER DATABASE {name} SET default_transaction_read_only = off", on="postgres")
        writable = time.monotonic()
        running.wait_for_more(1)
        assert time.monotonic() - writable <= 10
        running.wait_for_more(50)
    ids = running.stop()
    assert running.refused > 0
    assert_nothing_lost(project, workers, ids)


def test_a_locked_table_with_a_short_statement_timeout(new_project, killable_postgres_dsn, database):
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE, max_attempts=5)
    database("ALTER DATABASE {name} SET statement_timeout = '50ms'")
    workers = [project.worker("--threads", "4")]
    with load(project) as running:
        running.wait_for_more(50)
        with psycopg.connect(project.store.dsn) as holder:
            holder.execute("SET statement_timeout = 0")
            holder.execute("LOCK TABLE jfast_jobs")
            time.sleep(2)  # the length of the fault
            holder.rollback()
        running.wait_for_more(50)
    database("ALTER DATABASE {name} RESET statement_timeout")
    assert_nothing_lost(project, workers, running.stop())


def test_the_table_is_renamed_away_and_back(new_project, killable_postgres_dsn, database):
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE, max_attempts=5)
    jobs = project.enqueue("quick", {"seconds": 0.05}, count=60)
    worker = project.worker("--threads", "4")
    project.wait_for("start", jobs[:8])

    project.store.execute("ALTER TABLE jfast_jobs RENAME TO elsewhere")
    time.sleep(3)  # the length of the fault
    project.store.execute("ALTER TABLE elsewhere RENAME TO jfast_jobs")

    project.wait_until_done(jobs, 30)
    project.assert_once(jobs)
    # All threads work afterwards: four jobs that wait for each other.
    together = project.enqueue("plain", {"gate": "all"}, count=4)
    project.wait_for("start", together)
    project.open_gate("all")
    project.wait_until_done(together)
    assert worker.running


def test_a_server_that_is_down_when_the_worker_starts(new_project, killable_postgres, killable_postgres_dsn):
    project = new_project(killable_postgres_dsn)
    jobs = project.enqueue("quick", count=10)
    killable_postgres.stop()
    worker = project.worker("--threads", "4")
    worker.wait_for_log(r"(?i)cannot|refused|unavailable|connect")

    killable_postgres.start()

    project.wait_until_done(jobs, 20)
    project.assert_once(jobs)
    assert worker.running


def test_sigterm_while_the_server_is_away_ends_in_time(new_project, killable_postgres, killable_postgres_dsn):
    project = new_project(killable_postgres_dsn, visibility_timeout=LEASE)
    jobs = project.enqueue("blocked_first", count=2)
    worker = project.worker("--threads", "2", "--grace", "1")
    project.wait_for("start", jobs)
    killable_postgres.stop()

    since = worker.terminate()
    worker.wait(7)
    assert time.monotonic() - since <= 1 + 4

    killable_postgres.start()
    project.worker("--threads", "2")
    project.wait_until_done(jobs, 4 * LEASE)
    project.assert_once(jobs)
