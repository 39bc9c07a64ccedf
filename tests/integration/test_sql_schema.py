"""Schema steps: racing processes, a table of the asynchronous sibling's, a database that is newer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from jfast_sync.errors import ConfigError, SchemaError
from jfast_sync.job import Job
from jfast_sync.outcome import Done, Settlement
from jfast_sync.ports import DeadFilter, Settled
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql import schema
from jfast_sync.sql.engine import Database

from .sql_support import ANY, claim, put, start_python

UPGRADE = """
import sys
from jfast_sync.sql import schema
from jfast_sync.sql.engine import Database
database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(len(schema.upgrade(database)))
database.dispose()
"""

STEPS = ["jobs in jfast_jobs", "inbox in jfast_inbox", "outbox in jfast_outbox", "ticks in jfast_schedule_ticks"]

# As the asynchronous sibling 0.1.0a12 has it: none of our own columns.
SIBLING = """
CREATE TABLE jfast_jobs (id text PRIMARY KEY, task text NOT NULL, payload jsonb NOT NULL DEFAULT '{}'::jsonb,
attempts integer NOT NULL DEFAULT 0, max_attempts integer NOT NULL DEFAULT 3,
available_at timestamptz NOT NULL DEFAULT now(), locked_until timestamptz, request_id text, tenant_id text,
status text NOT NULL DEFAULT 'pending', last_error text, created_at timestamptz NOT NULL DEFAULT now(), trace jsonb)
"""


def test_twenty_processes_set_up_one_database_together(dsn: str) -> None:
    processes = [start_python(UPGRADE, dsn) for _ in range(20)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    applied = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        applied.append(int(out))
    assert sum(applied) == len(STEPS)  # each step once, by whoever came first


def test_threads_of_one_process_set_up_together(dsn: str) -> None:
    databases = [Database(dsn) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        applied = list(pool.map(schema.upgrade, databases))
    assert sum(len(steps) for steps in applied) == len(STEPS)
    for database in databases:
        schema.require_current(database)
        database.dispose()


def test_status_says_what_is_missing_and_changes_nothing(dsn: str) -> None:
    database = Database(dsn)
    before = schema.status(database)
    assert [(one.version, one.latest, len(one.pending)) for one in before] == [(0, 1, 1)] * len(STEPS)
    with pytest.raises(SchemaError, match="jfast-sync db upgrade"):
        schema.require_current(database)
    assert schema.upgrade(database) == STEPS
    assert all(one.current for one in schema.status(database))
    assert schema.upgrade(database) == []
    database.dispose()


def test_a_newer_database_is_refused(queue: SqlQueue) -> None:
    with queue.database.control.begin() as connection:
        connection.execute(text("UPDATE jfast_schema SET version = 99 WHERE component = 'jfast_jobs'"))
    for refuses in (schema.upgrade, schema.require_current):
        with pytest.raises(SchemaError, match=r"version 99.*upgrade jfast-sync"):
            refuses(queue.database)


def test_two_queues_live_in_one_database(queue: SqlQueue) -> None:
    other = SqlQueue(queue.database, name="other_jobs")
    other.setup()
    put(other, id="x")
    assert claim(queue) == []
    assert [lease.job.id for lease in claim(other)] == ["x"]
    other.close()


def test_a_name_that_is_no_table_name_is_refused(queue: SqlQueue) -> None:
    with pytest.raises(ConfigError, match="a-z, 0-9 and _"):
        SqlQueue(queue.database, name="jobs; DROP TABLE x")


def test_a_foreign_table_of_that_name_is_refused(dsn: str) -> None:
    database = Database(dsn)
    with database.control.begin() as connection:
        connection.execute(text("CREATE TABLE jfast_jobs (n integer)"))
    with pytest.raises(ConfigError, match="is not a jobs table"):
        schema.upgrade(database)
    database.dispose()


def test_missing_tables_say_what_to_run(dsn: str) -> None:
    queue = SqlQueue(Database(dsn))
    with pytest.raises(SchemaError, match="jfast-sync db upgrade"):
        queue.enqueue([Job(task="t")])
    queue.close()


def test_the_siblings_table_is_completed_and_its_rows_are_jobs(postgres_dsn: str) -> None:
    queue = SqlQueue(Database(postgres_dsn))
    with queue.database.control.begin() as connection:
        connection.exec_driver_sql(SIBLING)
        connection.execute(text("INSERT INTO jfast_jobs (id, task, payload) VALUES ('old', 't', '{\"n\": 1}')"))
        connection.execute(
            text("INSERT INTO jfast_jobs (id, task, status, last_error, attempts) VALUES ('gone', 't', 'dead', 'x', 3)")
        )
        connection.execute(
            text(
                "INSERT INTO jfast_jobs (id, task, status, attempts, locked_until) "
                "VALUES ('lapsed', 't', 'running', 1, now() - interval '1 minute')"
            )
        )
    queue.setup()
    lease = claim(queue)[0]
    assert (lease.job.id, lease.job.payload, lease.job.queue, lease.job.priority) == ("old", {"n": 1}, "default", 0)
    # The sibling's services go on enqueueing without our columns.
    with queue.database.control.begin() as connection:
        connection.execute(text("INSERT INTO jfast_jobs (id, task) VALUES ('new', 't')"))
    assert [one.job.id for one in claim(queue, 5)] == ["new"]
    assert [(dead.job.id, dead.job.error) for dead in queue.dead(DeadFilter(), limit=5)] == [("gone", "x")]
    assert queue.recover() == 1
    assert queue.settle([Settlement(lease, Done())]) == [Settled.APPLIED]
    queue.close()


def test_a_lease_that_the_sibling_took_over_can_no_longer_commit(postgres_queue: SqlQueue) -> None:
    """It claims a lapsed row without a token, so ours stays in it: the count of starts is part of the fence."""
    put(postgres_queue, id="x")
    lease = postgres_queue.claim(1, 0.0, ANY)[0]
    with postgres_queue.database.control.begin() as connection:
        connection.execute(text("UPDATE jfast_jobs SET attempts = attempts + 1 WHERE id = 'x'"))
    with postgres_queue.database.session() as session:
        assert postgres_queue.complete_in(session, lease) is False


def test_setting_up_again_locks_out_nobody(postgres_queue: SqlQueue) -> None:
    with postgres_queue.database.control.connect() as reader:
        reader.execute(text("SELECT 1 FROM jfast_jobs"))  # holds a lock that an ALTER TABLE would wait for
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(schema.upgrade, postgres_queue.database).result(5) == []
