"""Where the queue lives in the application's database, one transaction holds the job and the work."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import text

from jfast_sync.outcome import Done, Release
from jfast_sync.ports import Held, Settled, SharesTransaction
from tests.contract.backends import VISIBILITY, SqlBackend, needs
from tests.contract.steps import a_job, claim, extend, ids, meanwhile, put, put_many, seconds, settle, take, take_one

pytestmark = needs(SharesTransaction)


class Rollback(Exception):
    """Raised by a test to roll a session back."""


@pytest.fixture
def receipts(backend: SqlBackend, queue: Any) -> None:
    """The application's own table."""
    with backend.session() as session:
        session.execute(text("CREATE TABLE receipts (number integer PRIMARY KEY)"))


def insert(session: Any, number: int) -> None:
    session.execute(text("INSERT INTO receipts VALUES (:number)"), {"number": number})


def stored(backend: SqlBackend) -> list[int]:
    with backend.session() as session:
        return list(session.execute(text("SELECT number FROM receipts ORDER BY number")).scalars())


def test_the_queue_knows_its_own_database(backend: SqlBackend, queue: Any) -> None:
    with backend.session() as session:
        assert queue.shares(session) is True


def test_another_database_is_not_shared(queue: Any) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine("sqlite://")
    with Session(engine) as session:
        assert queue.shares(session) is False
    engine.dispose()


def test_a_commit_makes_the_job_exist(backend: SqlBackend, queue: Any, receipts: None) -> None:
    with backend.session() as session:
        insert(session, 1)
        assert queue.enqueue_in(session, [a_job(id="x", payload={"n": 1}, tenant_id="acme")]) == ["x"]
    assert stored(backend) == [1]
    job = take_one(queue).job
    assert (job.id, job.payload, job.tenant_id) == ("x", {"n": 1}, "acme")


def test_a_rollback_leaves_nothing(backend: SqlBackend, queue: Any, receipts: None) -> None:
    with pytest.raises(Rollback), backend.session() as session:
        insert(session, 1)
        queue.enqueue_in(session, [a_job(id="x")])
        raise Rollback
    assert stored(backend) == []
    assert claim(queue) == []
    assert queue.stats().ready == 0
    assert queue.enqueue([a_job(id="x")]) == ["x"]


def test_a_rolled_back_savepoint_leaves_nothing(backend: SqlBackend, queue: Any) -> None:
    with backend.session() as session:
        queue.enqueue_in(session, [a_job(id="kept")])
        nested = session.begin_nested()
        queue.enqueue_in(session, [a_job(id="dropped")])
        nested.rollback()
    assert ids(take(queue, 1)) == ["kept"]
    assert claim(queue) == []


def test_the_job_is_invisible_before_the_commit(backend: SqlBackend, queue: Any) -> None:
    with backend.session() as session:
        queue.enqueue_in(session, [a_job(id="x")])
        assert claim(backend.open_bare()) == []
    assert ids(take(queue, 1)) == ["x"]


def test_a_commit_ends_a_wait_elsewhere(backend: SqlBackend) -> None:
    waiting, mine = backend.open(patient=True), backend.open(patient=True)
    with meanwhile(lambda: claim(waiting, 1, 30)) as claimed:
        with backend.session() as session:
            mine.enqueue_in(session, [a_job(id="x")])
        start = time.monotonic()
        assert ids(claimed.result(20)) == ["x"]
    assert time.monotonic() - start < 5


def test_ids_that_exist_are_left_alone_and_the_transaction_survives(
    backend: SqlBackend, queue: Any, receipts: None
) -> None:
    put(queue, id="x", payload={"n": 1})
    with backend.session() as session:
        insert(session, 1)
        assert queue.enqueue_in(session, [a_job(id="x", payload={"n": 2}), a_job(id="y")]) == ["y"]
        assert queue.enqueue_in(session, [a_job(id="y")]) == []
        insert(session, 2)
    assert stored(backend) == [1, 2]
    assert {lease.job.id: lease.job.payload for lease in take(queue, 2)} == {"x": {"n": 1}, "y": {}}


def test_a_delay_in_a_transaction_is_never_early(backend: SqlBackend, queue: Any) -> None:
    with backend.session() as session:
        queue.enqueue_in(session, [a_job(id="x", delay=seconds(1000))])
    backend.pass_time(900)
    assert claim(queue) == []
    backend.pass_time(101)
    assert ids(take(queue, 1)) == ["x"]


def test_a_large_batch_in_a_transaction(backend: SqlBackend, queue: Any) -> None:
    jobs = [a_job() for _ in range(3000)]
    with backend.session() as session:
        assert queue.enqueue_in(session, jobs) == [job.id for job in jobs]
        assert queue.enqueue_in(session, []) == []
    assert queue.stats().ready == 3000


def test_completion_and_work_are_one(backend: SqlBackend, queue: Any, receipts: None) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    with backend.session() as session:
        insert(session, 1)
        assert queue.complete_in(session, lease) is True
    assert stored(backend) == [1]
    assert queue.committed(lease) is True
    assert (queue.stats().running, queue.stats().ready) == (0, 0)
    assert settle(queue, lease, Done()) is Settled.REFUSED
    assert extend(queue, lease) is Held.LOST
    backend.pass_time(VISIBILITY + 1)
    assert queue.recover() == 0


def test_a_completion_rolled_back_never_was(backend: SqlBackend, queue: Any, receipts: None) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    with pytest.raises(Rollback), backend.session() as session:
        insert(session, 1)
        assert queue.complete_in(session, lease) is True
        raise Rollback
    assert stored(backend) == []
    assert queue.committed(lease) is False
    assert extend(queue, lease) is Held.YES
    assert settle(queue, lease, Done()) is Settled.APPLIED


def test_a_stale_token_cannot_complete(backend: SqlBackend, queue: Any, receipts: None) -> None:
    put(queue, id="x")
    stale = take_one(queue)
    backend.pass_time(VISIBILITY + 1)
    assert queue.recover() == 1
    current = take_one(queue)
    with pytest.raises(Rollback), backend.session() as session:
        insert(session, 1)
        assert queue.complete_in(session, stale) is False
        raise Rollback
    assert stored(backend) == []
    assert queue.committed(stale) is False
    with backend.session() as session:
        assert queue.complete_in(session, current) is True
    assert queue.committed(current) is True


def test_a_stale_token_of_the_same_attempt_cannot_complete(backend: SqlBackend, queue: Any) -> None:
    put(queue, id="x")
    stale = take_one(queue)
    settle(queue, stale, Release())
    current = take_one(queue)
    assert current.job.attempts == stale.job.attempts
    with pytest.raises(Rollback), backend.session() as session:
        assert queue.complete_in(session, stale) is False
        raise Rollback
    assert extend(queue, current) is Held.YES


def test_a_lapsed_lease_that_nobody_took_can_complete(backend: SqlBackend, queue: Any) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    backend.pass_time(VISIBILITY * 10)
    with backend.session() as session:
        assert queue.complete_in(session, lease) is True
    assert queue.committed(lease) is True


def test_a_job_that_was_put_back_cannot_complete(backend: SqlBackend, queue: Any) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    settle(queue, lease, Release())
    with pytest.raises(Rollback), backend.session() as session:
        assert queue.complete_in(session, lease) is False
        raise Rollback
    assert queue.committed(lease) is False


def test_a_kept_job_completed_in_a_transaction_is_findable(backend: SqlBackend) -> None:
    queue = backend.open(keep_done=1000.0)
    put(queue, id="x")
    lease = take_one(queue)
    with backend.session() as session:
        assert queue.complete_in(session, lease) is True
    assert queue.find("x").state == "done"
    assert queue.committed(lease) is True
    assert claim(queue) == []


def test_completing_one_leaves_the_others(backend: SqlBackend, queue: Any) -> None:
    put_many(queue, 3)
    one, two, three = take(queue, 3)
    with backend.session() as session:
        assert queue.complete_in(session, two) is True
    assert queue.extend([one, two, three]) == [Held.YES, Held.LOST, Held.YES]


def test_a_job_enqueued_by_the_job_that_completes(backend: SqlBackend, queue: Any) -> None:
    put(queue, id="parent")
    lease = take_one(queue)
    with backend.session() as session:
        queue.enqueue_in(session, [a_job(id="child")])
        assert queue.complete_in(session, lease) is True
    assert ids(take(queue, 1)) == ["child"]
