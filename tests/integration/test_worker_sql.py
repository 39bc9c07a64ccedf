"""The worker on SQLite and PostgreSQL: the handler's writes, its claims and the job's completion are one thing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jfast_sync import inbox
from jfast_sync.job import Job, Lease, RunningJob
from jfast_sync.outcome import Policy, Release, Settlement
from jfast_sync.ports import DeadFilter, Selection
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql import holders, schema
from jfast_sync.sql.engine import Database
from jfast_sync.tasks import TaskSession
from jfast_sync.worker.transaction import JOBS
from tests.waiting import eventually
from tests.worker_harness import Bench


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    name = "sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"
    database = Database(request.getfixturevalue(name), pool_size=12)
    schema.upgrade(database)
    with database.session() as session:
        session.execute(text("CREATE TABLE effects (n integer, job text)"))
    yield database
    database.dispose()


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    queue = SqlQueue(database, visibility_timeout=60.0)
    bench = Bench(queue, database)
    _declare(bench)
    yield bench
    queue.close()


@pytest.fixture
def apart(database: Database) -> Bench:
    """A queue that does not live in the sessions' database."""
    bench = Bench(MemoryQueue(), database)
    _declare(bench)
    return bench


@pytest.fixture(params=["in the same database", "elsewhere"])
def anywhere(request: pytest.FixtureRequest, bench: Bench, apart: Bench) -> Bench:
    """Both, one after the other."""
    return bench if request.param == "in the same database" else apart


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def _declare(bench: Bench) -> None:
    @bench.tasks.task("write")
    def write(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, payload["n"], job.id)

    @bench.tasks.task("once", idempotent_on=lambda payload: payload["n"] // 2)
    def once(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, payload["n"] // 2, job.id)


def insert(session: Session, number: int, job_id: str) -> None:
    session.execute(text("INSERT INTO effects (n, job) VALUES (:n, :job)"), {"n": number, "job": job_id})


def effects(bench: Bench) -> list[int]:
    assert bench.database is not None
    with bench.database.session() as session:
        return sorted(session.execute(text("SELECT n FROM effects")).scalars())


def dead_errors(bench: Bench) -> list[str | None]:
    return [dead.job.error for dead in bench.queue.dead(DeadFilter(), limit=100)]


def test_each_effect_is_there_once(anywhere: Bench) -> None:
    bench = anywhere
    bench.enqueue("write", 60)
    counts = bench.drain(threads=4).counts
    assert effects(bench) == list(range(60))
    assert (counts.done, counts.lost) == (60, 0)


def test_a_duplicate_by_its_key_is_skipped_and_counted(anywhere: Bench) -> None:
    bench = anywhere
    bench.enqueue("once", 40)
    counts = bench.drain(threads=4).counts
    assert effects(bench) == list(range(20))
    assert (counts.done, counts.skipped) == (40, 20)
    assert bench.stats().dead == 0


def test_a_key_without_a_session_opens_the_transaction_itself(bench: Bench) -> None:
    ran: list[int] = []

    @bench.tasks.task("bare", idempotent_on=lambda payload: "same")
    def bare(payload: dict[str, Any]) -> None:
        ran.append(payload["n"])

    bench.enqueue("bare", 5)
    assert bench.drain().counts.skipped == 4
    assert len(ran) == 1


def test_a_key_of_none_is_run_each_time_and_an_empty_one_fails(bench: Bench) -> None:
    ran: list[int] = []

    @bench.tasks.task("maybe", idempotent_on=lambda payload: payload["key"])
    def maybe(payload: dict[str, Any]) -> None:
        ran.append(1)

    bench.enqueue("maybe", 3, payload={"key": None})
    bench.enqueue("maybe", payload={"key": ""}, max_attempts=1)
    counts = bench.drain().counts
    assert (len(ran), counts.skipped, counts.dead) == (3, 0, 1)


def test_a_failure_takes_the_writes_and_the_key_back(bench: Bench) -> None:
    @bench.tasks.task("second", idempotent_on=lambda payload: "key")
    def second(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, job.attempts, job.id)
        session.commit()  # closes a savepoint, no more
        if job.attempts == 1:
            raise ValueError("after the write")

    bench.enqueue("second")
    counts = bench.drain().counts
    assert effects(bench) == [2]
    assert (counts.done, counts.failed, counts.skipped) == (1, 1, 0)


def test_a_handlers_rollback_undoes_its_writes_but_not_its_completion(bench: Bench) -> None:
    @bench.tasks.task("undo")
    def undo(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, 1, job.id)
        session.rollback()
        insert(session, 2, job.id)

    bench.enqueue("undo")
    assert bench.drain().counts.done == 1
    assert effects(bench) == [2]


def test_a_job_enqueued_in_the_session_exists_only_with_its_commit(bench: Bench) -> None:
    @bench.tasks.task("parent")
    def parent(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        bench.queue.enqueue_in(session, [Job(task="write", payload={"n": job.attempts}, max_attempts=1)])
        if job.attempts == 1:
            raise ValueError("not yet")

    bench.enqueue("parent")
    assert bench.drain().counts.done == 2
    assert effects(bench) == [2]


def steal(bench: Bench, job_id: str) -> None:
    """Make the lease another worker's, as if it had lapsed and been claimed."""
    assert bench.database is not None
    bench.database.transact(
        lambda connection: connection.execute(
            text("UPDATE jfast_jobs SET lease_token = :token WHERE id = :id"), {"token": "f" * 32, "id": job_id}
        )
    )


def test_a_stale_token_rolls_everything_back(bench: Bench) -> None:
    stolen: list[str] = []

    @bench.tasks.task("stale")
    def stale(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        steal(bench, job.id)
        stolen.append(job.id)
        insert(session, 1, job.id)
        session.commit()

    bench.enqueue("stale")
    with bench.running() as worker:
        eventually(lambda: worker.counts.lost, until=lambda lost: lost == 1)
    assert effects(bench) == []
    assert bench.stats().running == 1


def test_a_handler_that_swallows_the_loss_cannot_commit(bench: Bench) -> None:
    running = threading.Event()

    @bench.tasks.task("deaf")
    def deaf(payload: dict[str, Any], session: TaskSession, job: RunningJob) -> None:
        running.set()
        assert job.wait_cancelled(30)
        insert(session, 1, job.id)

    (job_id,) = bench.enqueue("deaf")
    with bench.running(visibility_timeout=0.3, patience=10.0) as worker:
        running.wait(10)
        steal(bench, job_id)
        eventually(lambda: worker.counts.lost, until=lambda lost: lost == 1)
    assert effects(bench) == []


@pytest.mark.parametrize("end", ["timeout", "drain"])
def test_a_handler_blocked_after_its_write_is_ended_on_time_and_its_write_is_not_there(
    bench: Bench, gate: threading.Event, end: str
) -> None:
    written = threading.Event()
    raised: list[BaseException] = []

    @bench.tasks.task("stuck", timeout=0.3 if end == "timeout" else None)
    def stuck(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, 1, job.id)
        written.set()
        gate.wait(60)
        try:
            insert(session, 2, job.id)
            session.commit()
        except BaseException as exc:
            raised.append(exc)

    (job_id,) = bench.enqueue("stuck", max_attempts=1)
    worker = bench.worker(grace=0.0, max_abandoned=5)
    worker.start()
    assert written.wait(10)
    if end == "timeout":
        bench.when(dead=1)
        bench.enqueue("write", payload={"n": 7})  # the file, or the row, is free again
        eventually(lambda: effects(bench), until=lambda found: found == [7])
    worker.stop()
    assert worker.join(4)
    if end == "drain":
        row = bench.queue.find(job_id)
        assert (row.state, row.job.attempts) == ("ready", 0)
        assert effects(bench) == []
    before = effects(bench)
    gate.set()
    eventually(lambda: worker.abandoned_threads, until=lambda alive: alive == 0)
    assert raised, "the connection was to be closed from outside"
    assert effects(bench) == before


def test_a_statement_that_runs_too_long_is_cancelled(bench: Bench) -> None:
    assert bench.database is not None
    endless = (
        "SELECT pg_sleep(600)"
        if bench.database.dialect == "postgresql"
        else "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )

    @bench.tasks.task("slow", timeout=0.3)
    def slow(payload: dict[str, Any], session: TaskSession) -> None:
        session.execute(text(endless))

    bench.enqueue("slow", max_attempts=1)
    counts = bench.drain(patience=10.0).counts
    assert (counts.dead, counts.abandoned) == (1, 0)
    assert dead_errors(bench) == ["TimeoutError: ran longer than 0.3 s"]


def test_somebody_elses_key_is_waited_for_without_spending_an_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock timeout on the key is an uncounted retry; here every claim of the first start meets one."""
    from jfast_sync.sql.failures import LockTimeout
    from jfast_sync.worker import transaction

    met: list[int] = []

    def claim_on(connection: Connection, message_id: Any, **options: Any) -> bool:
        if not met:
            met.append(1)
            raise LockTimeout("held by another transaction")
        return inbox.claim_on(connection, message_id, **options)

    monkeypatch.setattr(transaction, "claim_on", claim_on)
    seen: list[int] = []

    @bench.tasks.task("keyed", idempotent_on=lambda payload: "k")
    def keyed(payload: dict[str, Any], job: Job) -> None:
        seen.append(job.attempts)

    bench.enqueue("keyed", max_attempts=1)
    counts = bench.drain().counts
    assert met == [1]
    assert seen == [1]
    assert (counts.done, counts.failed, counts.retried) == (1, 0, 1)


class CutCommit:
    """A database whose first commit of an attempt loses its reply, after or before it took effect."""

    def __init__(self, database: Database, *, takes_effect: bool) -> None:
        self._database = database
        self._takes_effect = takes_effect
        self.cut = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def attempt(self, tenant_id: str | None = None) -> Any:
        transaction = self._database.attempt(tenant_id)
        real = transaction.commit

        def commit() -> None:
            if self.cut:
                real()
                return
            self.cut += 1
            if self._takes_effect:
                real()
            raise ConnectionResetError("the reply was lost")

        transaction.commit = commit  # type: ignore[method-assign]
        return transaction


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_commit_whose_reply_was_lost_is_looked_up(anywhere: Bench, takes_effect: bool) -> None:
    bench = anywhere
    assert bench.database is not None
    cut = CutCommit(bench.database, takes_effect=takes_effect)
    bench.database = cut  # type: ignore[assignment]
    bench.enqueue("write")
    counts = bench.drain().counts
    assert cut.cut == 1
    assert effects(bench) == [0]
    assert (counts.done, counts.failed, counts.dead) == (1, 0 if takes_effect else 1, 0)


def test_a_redelivery_after_the_commit_does_nothing(apart: Bench) -> None:
    """Where the queue lives elsewhere the job's own id is claimed: of two starts at most one commits."""
    (job_id,) = apart.enqueue("write")
    assert apart.database is not None
    with apart.database.session() as session:
        assert inbox.claim_once(session, job_id, consumer=JOBS, tenant_id=None)
    counts = apart.drain().counts
    assert (counts.done, counts.skipped) == (1, 1)
    assert effects(apart) == []


def test_keys_are_scoped_by_tenant(bench: Bench) -> None:
    for tenant in ("a", "b", "a"):
        bench.enqueue("once", tenant_id=tenant)
    counts = bench.drain(threads=1).counts
    assert (counts.done, counts.skipped) == (3, 1)
    assert effects(bench) == [0, 0]


def test_several_workers_over_one_database_run_each_job_once(bench: Bench, database: Database) -> None:
    bench.enqueue("write", 200)
    queues = [SqlQueue(database) for _ in range(3)]
    workers = [bench.worker(queue=queue, drain=True, threads=4) for queue in queues]
    for worker in workers:
        worker.start()
    for worker in workers:
        assert worker.join(60)
    for queue in queues:
        queue.close()
    assert effects(bench) == list(range(200))
    assert sum(worker.counts.done for worker in workers) == 200


def test_jobs_of_a_vanished_worker_are_run_by_another(bench: Bench, database: Database) -> None:
    bench.enqueue("write", 8)
    short = SqlQueue(database, visibility_timeout=1.0)
    taken: list[Lease] = short.claim(8, 0.0, Selection(worker="vanished"))
    assert len(taken) == 8
    worker = bench.worker(queue=short, visibility_timeout=1.0)
    worker.start()
    eventually(lambda: effects(bench), until=lambda found: found == list(range(8)))
    worker.stop()
    assert worker.join(10)
    short.close()


def test_a_database_that_cannot_open_a_transaction_spends_no_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jfast_sync.errors import UnavailableError

    assert bench.database is not None
    real = bench.database.attempt
    met: list[int] = []

    def attempt(tenant_id: str | None = None) -> Any:
        if not met:
            met.append(1)
            raise UnavailableError("no connection")
        return real(tenant_id)

    monkeypatch.setattr(bench.database, "attempt", attempt)
    bench.policy = Policy()
    bench.enqueue("write", max_attempts=1)
    counts = bench.drain().counts
    assert (counts.done, counts.failed) == (1, 0)


def test_what_a_paused_worker_left_open_is_ended_by_the_jobs_next_start(postgres_dsn: str) -> None:
    """Its key and its rows would block the next start for as long as it is paused."""
    database = Database(postgres_dsn, pool_size=12)
    schema.upgrade(database)
    queue = SqlQueue(database)
    bench = Bench(queue, database)

    @bench.tasks.task("keyed", idempotent_on=lambda payload: "key")
    def keyed(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        session.execute(text("INSERT INTO taken VALUES (1)"))

    with database.session() as session:
        session.execute(text("CREATE TABLE taken (n integer PRIMARY KEY)"))
    bench.enqueue("keyed", id="x" * 128)
    (lease,) = queue.claim(1, 0.0, Selection(worker="w"))
    queue.settle([Settlement(lease, Release())])
    paused, neighbour, successor = database.attempt(), database.attempt(), database.attempt()
    holders.mark(paused.connection, lease)
    holders.mark(neighbour.connection, replace(lease, job=replace(lease.job, id="another")))
    holders.mark(successor.connection, replace(lease, lapses=2))  # this start was overtaken while it was paused
    assert inbox.claim_once(paused.session, "str:key", consumer="keyed", tenant_id=None)
    paused.session.execute(text("INSERT INTO taken VALUES (1)"))
    database.transact(lambda connection: connection.execute(text("UPDATE jfast_jobs SET lapses = 1")))
    try:
        counts = bench.drain().counts
        assert (counts.done, counts.skipped, counts.retried) == (1, 0, 0)
        with pytest.raises(OperationalError):
            paused.commit()
        for untouched in (neighbour, successor):
            untouched.session.execute(text("SELECT 1"))
            untouched.commit()
    finally:
        for transaction in (paused, neighbour, successor):
            transaction.close()
        queue.close()
        database.dispose()
