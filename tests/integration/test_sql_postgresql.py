"""What PostgreSQL does to those who use it: poolers, failovers, migrations, locks, search paths, restarts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import QueuePool

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Job
from jfast_sync.outcome import Done, Release, Settlement
from jfast_sync.ports import Held, Settled, Stats
from jfast_sync.queues import sql_inspect
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql.engine import Database
from tests.servers import PostgresServer
from tests.waiting import eventually

from .sql_support import ANY, claim, make_queue, put


@pytest.fixture
def admin(postgres_dsn: str, postgres_queue: SqlQueue) -> Iterator[psycopg.Connection]:
    """A connection that is nobody's of the library, in autocommit."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


def run(queue: SqlQueue, count: int) -> None:
    put(queue, count)
    for lease in claim(queue, count):
        assert queue.settle([Settlement(lease, Done())]) == [Settled.APPLIED]


def prepared(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one())


def test_behind_a_pooler_nothing_is_prepared_and_nobody_listens(postgres_dsn: str, admin: psycopg.Connection) -> None:
    database = Database(postgres_dsn, pgbouncer=True)
    queue = SqlQueue(database)
    run(queue, 50)
    assert queue.claim(1, 0.3, ANY) == []
    assert (prepared(database.control), prepared(database.engine)) == (0, 0)
    assert admin.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchone() == (0,)
    queue.close()


def test_a_users_engine_is_taken_as_it_is(postgres_dsn: str, postgres_queue: SqlQueue) -> None:
    engine = create_engine(
        postgres_dsn.replace("postgresql://", "postgresql+psycopg://"),
        connect_args={"prepare_threshold": None, "application_name": "theirs"},
        pool_size=1,
        max_overflow=0,
    )
    queue = SqlQueue(Database(engine))
    run(queue, 50)
    with queue.database.control.connect() as connection:
        assert connection.execute(text("SHOW application_name")).scalar() == "theirs"
    assert prepared(queue.database.control) == 0
    with engine.connect():  # their one connection is in use, the queue has its own
        run(queue, 3)
    with queue.database.session() as session:
        assert queue.shares(session)
    queue.close()
    with engine.connect() as connection:  # left open by close: it is theirs
        assert connection.execute(text("SELECT 1")).scalar() == 1
    assert isinstance(engine.pool, QueuePool)
    engine.dispose()


def test_a_column_added_from_outside_changes_nothing(postgres_queue: SqlQueue, admin: psycopg.Connection) -> None:
    run(postgres_queue, 20)
    admin.execute("ALTER TABLE jfast_jobs ADD COLUMN extra integer")
    run(postgres_queue, 20)


def test_a_server_gone_read_only_is_left_and_found_again(postgres_queue: SqlQueue, admin: psycopg.Connection) -> None:
    queue = postgres_queue
    run(queue, 5)
    name = admin.info.dbname
    admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with pytest.raises(UnavailableError, match="read-only"):
        put(queue)
    admin.execute("SET default_transaction_read_only = off")
    admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = off')
    run(queue, 5)  # at once, though nobody ended the read-only connections


def test_cut_connections_cost_no_call(postgres_queue: SqlQueue, admin: psycopg.Connection) -> None:
    put(postgres_queue, 3)
    leases = claim(postgres_queue, 3)
    for _ in range(3):
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert postgres_queue.extend(leases) == [Held.YES] * 3
    assert postgres_queue.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.APPLIED] * 3


def test_a_lock_on_the_table_passes(postgres_dsn: str, admin: psycopg.Connection) -> None:
    queue = make_queue(postgres_dsn + ("&" if "?" in postgres_dsn else "?") + "options=-c%20statement_timeout%3D50")
    put(queue, 2)
    lease = claim(queue)[0]
    with psycopg.connect(postgres_dsn) as locker:
        locker.execute("LOCK TABLE jfast_jobs IN ACCESS EXCLUSIVE MODE")
        for call in (lambda: claim(queue), lambda: queue.extend([lease]), queue.recover, queue.stats):
            with pytest.raises(UnavailableError):
                call()
    assert queue.extend([lease]) == [Held.YES]
    assert len(claim(queue)) == 1
    queue.close()


def test_handlers_that_hold_every_session_starve_nobody(postgres_dsn: str) -> None:
    queue = make_queue(postgres_dsn.replace("postgresql://", "postgres://"))
    database = Database(postgres_dsn, pool_size=2)
    starved = SqlQueue(database)
    with database.session() as one, database.session() as two:
        one.execute(text("SELECT 1"))
        two.execute(text("SELECT 1"))
        assert len(put(starved, 5)) == 5
        leases = claim(starved, 5)
        assert starved.extend(leases) == [Held.YES] * 5
        assert starved.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.APPLIED] * 5
    starved.close()
    queue.close()


def test_thirty_thousand_jobs_in_one_call(queue: SqlQueue) -> None:
    started = time.monotonic()
    stored = queue.enqueue([Job(task="t", payload={"n": number}, max_attempts=3) for number in range(30_000)])
    assert time.monotonic() - started < 10
    assert len(set(stored)) == 30_000
    assert queue.stats().ready == 30_000


def test_a_search_path_set_by_a_handler_is_gone_with_it(postgres_dsn: str) -> None:
    queue = SqlQueue(Database(postgres_dsn, pool_size=1))
    queue.setup()
    put(queue, 2)
    with queue.database.session() as session:
        session.execute(text("CREATE SCHEMA elsewhere"))
    for lease in claim(queue, 2):
        attempt = queue.database.attempt()
        assert attempt.session.execute(text("SHOW search_path")).scalar() == '"$user", public'
        attempt.session.execute(text("SET search_path = elsewhere"))
        assert queue.enqueue_in(attempt.session, [Job(task="next", max_attempts=1)]) != []
        assert queue.complete_in(attempt.session, lease) is True
        attempt.commit()
        attempt.close()
    assert queue.stats().ready == 2
    queue.close()


def test_due_times_count_from_the_enqueueing_not_from_the_transactions_start(postgres_queue: SqlQueue) -> None:
    with postgres_queue.database.session() as session:
        frozen = session.execute(text("SELECT now()")).scalar_one()
        session.execute(text("SELECT pg_sleep(0.3)"))
        postgres_queue.enqueue_in(session, [Job(task="t", max_attempts=1)])
    job = claim(postgres_queue)[0].job
    assert job.created_at is not None
    assert job.created_at - frozen >= timedelta(seconds=0.3)


def test_a_foreign_key_hides_no_job(postgres_queue: SqlQueue, admin: psycopg.Connection) -> None:
    admin.execute("CREATE TABLE receipts (job text REFERENCES jfast_jobs (id))")
    put(postgres_queue, id="x")
    with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as other:
        other.execute("INSERT INTO receipts VALUES ('x')")
        lease = claim(postgres_queue)[0]
        assert postgres_queue.settle([Settlement(lease, Done())]) == [Settled.BUSY]  # a DELETE would wait
        other.rollback()
    assert postgres_queue.settle([Settlement(lease, Done())]) == [Settled.APPLIED]


def test_settling_renewing_and_recovering_in_any_order_never_deadlock(postgres_dsn: str) -> None:
    queue = make_queue(postgres_dsn, visibility_timeout=3600.0)
    put(queue, 2000)
    leases = claim(queue, 2000)
    assert len(leases) == 2000
    done = threading.Event()

    def renew(backwards: bool) -> int:
        rounds = 0
        while not done.is_set():
            queue.extend(leases[::-1] if backwards else leases)
            rounds += 1
        return rounds

    def settle(part: int) -> int:
        left = leases[part::4]
        deadline = time.monotonic() + 60
        while left and time.monotonic() < deadline:
            settlements = [Settlement(lease, Release()) for lease in left[::-1]]
            answers = queue.settle(settlements)
            left = [one.lease for one, answer in zip(settlements, answers, strict=True) if answer is Settled.BUSY]
        return len(left)

    with ThreadPoolExecutor(7) as pool:
        renewals = [pool.submit(renew, backwards) for backwards in (True, False)]
        settled = [pool.submit(settle, part) for part in range(4)]
        left = [one.result(90) for one in settled]
        done.set()
        assert all(one.result(30) > 0 for one in renewals)
    assert left == [0, 0, 0, 0]
    assert queue.stats().ready == 2000
    queue.close()


def test_an_old_transaction_is_named(postgres_queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_inspect, "_OLD", 0.0)
    with postgres_queue.database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        pid = old.execute(text("SELECT pg_backend_pid()")).scalar()
        assert f"pid {pid}" in postgres_queue.stats().warnings[0]
    quiet: Stats = postgres_queue.stats()
    assert quiet.warnings == []


def test_notifying_does_not_slow_commits_down(postgres_dsn: str, postgres_queue: SqlQueue) -> None:
    silent = SqlQueue(Database(postgres_dsn), listen=False)

    def seconds(queue: SqlQueue) -> float:
        put(queue)
        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: [put(queue) for _ in range(50)], range(8)))
        return time.perf_counter() - started

    assert seconds(postgres_queue) < 3 * seconds(silent) + 0.2
    silent.close()


def test_after_a_restart_the_holders_have_a_leases_time_to_come_back(
    killable_postgres: PostgresServer, killable_postgres_dsn: str
) -> None:
    queue = make_queue(killable_postgres_dsn, visibility_timeout=3600.0)
    put(queue, 1, id="before")
    before = claim(queue)[0]
    killable_postgres.stop()
    killable_postgres.start()
    put(queue, 1, id="after")
    eventually(lambda: claim(queue), what="the job enqueued after the restart")
    with queue.database.control.begin() as connection:
        connection.execute(text("UPDATE jfast_jobs SET locked_until = now() - interval '1 second'"))
    # Both have lapsed; only one of the two workers could have renewed its lease all the time.
    assert queue.recover() == 1
    assert queue.extend([before]) == [Held.YES]
    queue.close()


def test_an_instance_that_was_cut_off_recovers_nobody_at_first(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(postgres_dsn, visibility_timeout=3600.0)
    put(queue)
    claim(queue)
    with queue.database.control.begin() as connection:
        connection.execute(text("UPDATE jfast_jobs SET locked_until = now() - interval '1 second'"))
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def unreachable(_work: object) -> None:
        raise UnavailableError("away")

    def outage(seconds: float) -> None:
        with monkeypatch.context() as patch, contextlib.suppress(UnavailableError):
            patch.setattr(queue.database, "transact", unreachable)
            queue.stats()
        clock[0] += seconds

    outage(1201)  # more than a third of a lease: somebody may have missed a renewal
    assert queue.recover() == 0, "its first word to a database that answers again"
    assert queue.recover() == 0
    clock[0] += 3601
    assert queue.recover() == 1

    claim(queue)
    with queue.database.control.begin() as connection:
        connection.execute(text("UPDATE jfast_jobs SET locked_until = now() - interval '1 second'"))
    outage(1199)  # less: nobody has
    queue.stats()
    assert queue.recover() == 1
    monkeypatch.undo()
    queue.close()
