"""The transaction of an attempt: what it holds, how it is stopped from outside, and what it leaves behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from jfast_sync.errors import LeaseLostError
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql.engine import Database
from jfast_sync.sql.session import AttemptTransaction, holds
from tests.waiting import eventually

from .sql_support import claim, put

ENDLESS = {
    "postgresql": "SELECT pg_sleep(600)",
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT count(*) FROM s",
}


@pytest.fixture
def notes(queue: SqlQueue) -> None:
    with queue.database.session() as session:
        session.execute(text("CREATE TABLE notes (n integer PRIMARY KEY)"))


def count(queue: SqlQueue) -> int:
    with queue.database.session() as session:
        return int(session.execute(text("SELECT count(*) FROM notes")).scalar_one())


def write(attempt: AttemptTransaction, number: int = 1) -> None:
    attempt.session.execute(text("INSERT INTO notes VALUES (:n)"), {"n": number})


def stuck(queue: SqlQueue, attempt: AttemptTransaction) -> tuple[threading.Thread, list[Exception]]:
    """Run an endless statement of the attempt in a thread; return when the database is at it."""
    raised: list[Exception] = []

    def run() -> None:
        begun.set()
        try:
            attempt.session.execute(text(ENDLESS[queue.backend]))
        except DBAPIError as exc:
            raised.append(exc)

    begun = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(5)
    if queue.backend == "postgresql":
        asked = text("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(600)'")
        eventually(
            lambda: queue.database.transact(lambda connection: connection.execute(asked).scalar()),
            what="the statement to run",
        )
    return thread, raised


def stop_until_dead(thread: threading.Thread, stop: Callable[[], bool]) -> None:
    """Stop what runs; again, where the stop came before the statement had begun."""

    def stopped() -> bool:
        stop()
        thread.join(0.2)
        return not thread.is_alive()

    eventually(stopped, what="the statement to end")


@pytest.mark.usefixtures("notes")
def test_the_handlers_commit_is_a_savepoint_and_nothing_is_durable_before_ours(queue: SqlQueue) -> None:
    attempt = queue.database.attempt()
    write(attempt)
    attempt.session.commit()
    write(attempt, 2)
    attempt.session.rollback()
    assert count(queue) == 0
    attempt.commit()
    attempt.close()
    assert count(queue) == 1


@pytest.mark.usefixtures("notes")
def test_completion_and_writes_are_one(queue: SqlQueue) -> None:
    put(queue, id="x")
    lease = claim(queue)[0]
    attempt = queue.database.attempt()
    write(attempt)
    assert queue.complete_in(attempt.session, lease) is True
    attempt.close()  # never committed
    assert (count(queue), queue.committed(lease)) == (0, False)

    attempt = queue.database.attempt()
    write(attempt)
    assert queue.complete_in(attempt.session, lease) is True
    attempt.commit()
    attempt.close()
    assert (count(queue), queue.committed(lease)) == (1, True)


@pytest.mark.usefixtures("notes")
def test_cancel_ends_the_statement_and_nobody_elses(queue: SqlQueue) -> None:
    attempt = queue.database.attempt()
    thread, raised = stuck(queue, attempt)
    stop_until_dead(thread, attempt.cancel)
    assert len(raised) == 1
    attempt.close()
    assert attempt.cancel() is False
    assert attempt.terminate() is False
    assert count(queue) == 0


@pytest.mark.usefixtures("notes")
def test_terminate_frees_what_the_attempt_had_locked(queue: SqlQueue) -> None:
    attempt = queue.database.attempt()
    write(attempt)
    assert attempt.terminate() is True

    started = time.monotonic()
    successor = queue.database.attempt()
    write(successor)  # the same key: it would wait for the first for ever
    successor.commit()
    successor.close()
    assert time.monotonic() - started < 5

    with pytest.raises(Exception, match=r".+"):  # whatever the driver says of a connection that is gone
        write(attempt, 2)
    with pytest.raises(Exception, match=r".+"):
        attempt.commit()
    attempt.close()
    assert count(queue) == 1


@pytest.mark.usefixtures("notes")
def test_a_statement_that_hangs_ends_with_its_connection(queue: SqlQueue) -> None:
    attempt = queue.database.attempt()
    write(attempt)
    thread, raised = stuck(queue, attempt)
    stop_until_dead(thread, attempt.terminate)
    assert len(raised) == 1
    # Free before the attempt has closed anything, while the error still refers to the statement and its cursor.
    started = time.monotonic()
    successor = queue.database.attempt()
    write(successor)
    successor.rollback()
    successor.close()
    assert time.monotonic() - started < 5
    attempt.close()
    assert count(queue) == 0
    # The pool gives out working connections afterwards, to as many as it has.
    attempts = [queue.database.attempt() for _ in range(8)]
    for one in attempts:
        assert one.session.execute(text("SELECT 1")).scalar() == 1
        one.close()


def test_a_thread_holds_its_sqlite_file_only_while_it_has_a_session(queue: SqlQueue) -> None:
    path = queue.database.path
    attempt = queue.database.attempt()
    assert holds(path) is (queue.backend == "sqlite")
    attempt.close()
    attempt.close()
    assert holds(path) is False
    with queue.database.session():
        assert holds(path) is (queue.backend == "sqlite")
    assert holds(path) is False


def test_ending_a_users_own_sqlite_connection_refuses_what_comes_after(sqlite_dsn: str) -> None:
    engine = create_engine(sqlite_dsn)
    database = Database(engine)
    attempt = database.attempt()
    assert attempt.session.execute(text("SELECT 1")).scalar() == 1
    assert attempt.terminate() is True
    with pytest.raises(LeaseLostError):
        attempt.session.execute(text("SELECT 1"))
    attempt.close()
    with database.session() as session:  # the pool has let go of the ended connection
        assert session.execute(text("SELECT 1")).scalar() == 1
    database.dispose()
    engine.dispose()


def test_a_connection_is_ended_at_any_moment_without_harm(sqlite_dsn: str) -> None:
    """The driver itself crashes when it is closed during a call."""
    database = Database(sqlite_dsn)
    for round_number in range(60):
        attempt = database.attempt()
        thread = threading.Thread(target=busy, args=(attempt,))
        thread.start()
        time.sleep(round_number % 10 / 1000)  # any moment will do; nothing depends on which
        attempt.terminate()
        thread.join(10)
        assert not thread.is_alive()
        attempt.close()
    database.dispose()


def busy(attempt: AttemptTransaction) -> None:
    """Run statements until the connection is gone."""
    rows = text("WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 20000) SELECT n FROM s")
    with contextlib.suppress(DBAPIError, InvalidRequestError):
        while True:
            attempt.session.execute(rows).all()
