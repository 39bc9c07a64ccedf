"""What a handler may do with its session, and what it cannot undo or make durable with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from jfast_sync.errors import ConfigError
from jfast_sync.job import Job
from jfast_sync.sql import dsn as forms
from jfast_sync.sql.engine import Database
from jfast_sync.sql.session import AttemptTransaction
from jfast_sync.tasks import TaskSession
from tests.integration.sql_support import make_queue
from tests.integration.test_worker_sql import anywhere, apart, bench, database, dead_errors, effects, insert
from tests.worker_harness import Bench

__all__ = ["anywhere", "apart", "bench", "database"]


def _session_transaction(session: Session) -> None:
    transaction = session.get_transaction()
    assert transaction is not None
    transaction.rollback()


@pytest.mark.parametrize("undo", [Session.rollback, Session.close, Session.reset, _session_transaction])
def test_a_handlers_rollback_does_not_take_its_claim_back(anywhere: Bench, undo: Callable[[Session], None]) -> None:
    bench = anywhere

    @bench.tasks.task("undo", idempotent_on=lambda payload: 1)
    def undone(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, 1, job.id)
        undo(session)
        insert(session, 2, job.id)

    bench.enqueue("undo", count=2)
    counts = bench.drain(threads=1).counts

    assert (counts.done, counts.skipped) == (2, 1)
    assert effects(bench) == [2]


def test_a_handlers_rollback_does_not_let_a_redelivery_run_again(apart: Bench) -> None:
    @apart.tasks.task("undo")
    def undone(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        session.rollback()
        insert(session, 1, job.id)

    apart.enqueue("undo", id="same")
    apart.drain(threads=1)
    apart.enqueue("undo", id="same")

    assert apart.drain(threads=1).counts.skipped == 1
    assert effects(apart) == [1]


def _outer_transaction(session: Session) -> None:
    transaction = session.connection().get_transaction()
    assert transaction is not None
    transaction.commit()


def _undo_and_commit(session: Session) -> None:
    with suppress(Exception):
        session.connection().rollback()
    session.rollback()
    insert(session, 9, "x")
    session.commit()


PAST_THE_SESSION: dict[str, Callable[[Session], Any]] = {
    "connection.commit": lambda session: session.connection().commit(),
    "connection.rollback": lambda session: session.connection().rollback(),
    "connection.close": lambda session: session.connection().close(),
    "its transaction": _outer_transaction,
    "rollback, then a commit": _undo_and_commit,
    "COMMIT": lambda session: session.execute(text("COMMIT")),
    "commit;": lambda session: session.connection().exec_driver_sql("/* all of it */ commit;"),
    "END": lambda session: session.execute(text("-- done\n END")),
    "behind another": lambda session: session.execute(text("SELECT 1; COMMIT")),
    "ROLLBACK": lambda session: session.execute(text("ROLLBACK")),
}


@pytest.mark.parametrize("way", PAST_THE_SESSION)
def test_nothing_is_durable_before_the_handler_has_returned(bench: Bench, way: str) -> None:
    """Past the session the transaction cannot be ended either; the next attempt, which behaves, has the one effect."""

    @bench.tasks.task("eager")
    def eager(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, job.attempts, job.id)
        if job.attempts == 1:
            PAST_THE_SESSION[way](session)

    bench.enqueue("eager", max_attempts=2)
    counts = bench.drain(threads=1).counts

    assert (counts.started, counts.failed, counts.done) == (2, 1, 1)
    assert effects(bench) == [2]


@pytest.mark.parametrize("way", PAST_THE_SESSION)
def test_a_handler_that_swallows_the_refusal_gains_nothing(bench: Bench, way: str) -> None:
    """And leaves no lock behind, whatever state its session is in."""

    @bench.tasks.task("deaf")
    def deaf(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, job.attempts, job.id)
        if job.attempts == 1:
            with suppress(Exception):
                PAST_THE_SESSION[way](session)

    bench.enqueue("deaf", max_attempts=2)
    counts = bench.drain(threads=1).counts

    assert counts.done == 1
    assert effects(bench) == [counts.started]


def test_what_a_handler_may_not_do_is_said(bench: Bench) -> None:
    @bench.tasks.task("eager")
    def eager(payload: dict[str, Any], session: TaskSession) -> None:
        session.connection().commit()

    bench.enqueue("eager", max_attempts=1)
    bench.drain(threads=1)

    (error,) = dead_errors(bench)
    assert error is not None
    assert "use session.commit() and session.rollback()" in error


def test_savepoints_and_words_that_only_look_alike_are_the_handlers(bench: Bench) -> None:
    @bench.tasks.task("careful")
    def careful(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, 1, job.id)
        with suppress(ZeroDivisionError), session.begin_nested():
            insert(session, 2, job.id)
            raise ZeroDivisionError
        session.execute(text("SAVEPOINT mine"))
        insert(session, 3, job.id)
        session.execute(text("ROLLBACK TO SAVEPOINT mine"))
        session.execute(text("SELECT 'COMMIT'"))
        session.commit()

    bench.enqueue("careful")
    assert bench.drain(threads=1).counts.done == 1
    assert effects(bench) == [1]


def test_a_commit_that_fails_leaves_no_lock_behind(bench: Bench, database: Database) -> None:
    """SQLite keeps the transaction open when a deferred constraint refuses its commit."""
    with database.session() as session:
        session.execute(text("CREATE TABLE parents (id integer PRIMARY KEY)"))
        deferred = "REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"
        session.execute(text(f"CREATE TABLE children (parent integer {deferred})"))

    @bench.tasks.task("orphan")
    def orphan(payload: dict[str, Any], session: TaskSession) -> None:
        session.execute(text("INSERT INTO children VALUES (1)"))

    bench.enqueue("orphan", max_attempts=2)
    counts = bench.drain(threads=1).counts

    assert (counts.started, counts.dead) == (2, 1)
    assert "constraint" in str(dead_errors(bench)[0])


@pytest.fixture(params=["made so", "told so"])
def autocommit(request: pytest.FixtureRequest, dsn: str) -> Iterator[Any]:
    url = forms.parse(dsn)
    if request.param == "made so":
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
    else:
        engine = create_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


def test_an_engine_without_transactions_is_refused(autocommit: Any) -> None:
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        Database(autocommit)


def test_a_connection_without_transactions_is_refused(postgres_dsn: str) -> None:
    """An engine whose connections are switched only when they open."""
    engine = create_engine(forms.parse(postgres_dsn), pool_events=[(_switch, "connect")])
    queue = make_queue(postgres_dsn)
    bench = Bench(queue, Database(engine))
    ran: list[str] = []

    @bench.tasks.task("write")
    def write(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        ran.append(job.id)

    bench.enqueue("write", max_attempts=1)
    bench.drain(threads=1)

    assert not ran
    assert "AUTOCOMMIT" in str(dead_errors(bench)[0])
    queue.close()
    engine.dispose()


def _switch(connection: Any, _record: object) -> None:
    connection.autocommit = True


@pytest.mark.parametrize(
    "lasting",
    [
        "SET statement_timeout = '50ms'",
        "SELECT set_config('statement_timeout', '50ms', false)",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET default_transaction_read_only = on",
        "SELECT pg_advisory_lock(42)",
    ],
)
def test_what_a_handler_sets_for_its_connection_ends_with_the_job(postgres_dsn: str, lasting: str) -> None:
    """The next job there would be cancelled, be refused its writes, or wait for a lock nobody gives back."""
    database = Database(postgres_dsn, pool_size=1)
    state = text(
        "SELECT current_setting('statement_timeout'), current_setting('transaction_isolation'), "
        "current_setting('default_transaction_read_only'), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), pg_backend_pid()"
    )
    with database.session() as session:
        before = session.execute(state).one()
    attempt = database.attempt()
    attempt.session.execute(text(lasting))
    attempt.commit()
    attempt.close()
    with database.session() as session:
        assert session.execute(state).one() == before
    database.dispose()


def test_a_statement_is_cancelled_also_where_a_pooler_tells_process_ids_of_its_own(postgres_dsn: str) -> None:
    queue = make_queue(postgres_dsn)
    bench = Bench(queue, queue.database)
    opened = queue.database.attempt

    def through_a_pooler(tenant_id: str | None = None) -> AttemptTransaction:
        attempt = opened(tenant_id)
        attempt.backend = 2**31 - 1
        return attempt

    queue.database.attempt = through_a_pooler  # type: ignore[method-assign]

    @bench.tasks.task("sleeps", timeout=0.3)
    def sleeps(payload: dict[str, Any], session: TaskSession) -> None:
        session.execute(text("SELECT pg_sleep(30)"))

    bench.enqueue("sleeps", max_attempts=1)
    worker = bench.drain(threads=1, patience=10.0)

    assert dead_errors(bench) == ["TimeoutError: ran longer than 0.3 s"]
    assert worker.counts.abandoned == 0
    queue.close()
