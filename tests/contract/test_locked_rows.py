"""A row that somebody's open transaction holds stops neither the other rows nor the caller."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jfast_sync.outcome import Done, Retry, Settlement
from jfast_sync.ports import Held, Settled, SharesTransaction
from tests.contract.backends import VISIBILITY, PostgresBackend, RowLocks, needs
from tests.contract.steps import OUTCOMES, claim, extend, ids, put_many, settle, take

pytestmark = needs(RowLocks)


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_the_others_are_settled_and_the_locked_one_is_busy(backend: PostgresBackend, queue: Any, outcome: Any) -> None:
    put_many(queue, 3)
    leases = take(queue, 3)
    batch = [Settlement(lease, outcome) for lease in leases]
    with backend.row_locked(leases[1].job.id):
        start = time.monotonic()
        assert queue.settle(batch) == [Settled.APPLIED, Settled.BUSY, Settled.APPLIED]
        assert queue.settle([batch[1]]) == [Settled.BUSY]
        assert time.monotonic() - start < 5
        assert queue.stats().running == 1
    assert queue.settle([batch[1]]) == [Settled.APPLIED]


def test_a_batch_of_every_outcome_meets_a_locked_row(backend: PostgresBackend, queue: Any) -> None:
    put_many(queue, 6)
    leases = take(queue, 6)
    outcomes = [*OUTCOMES.values(), Retry(3, error="x")]
    batch = [Settlement(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)]
    with backend.row_locked(leases[2].job.id):
        answers = queue.settle(batch)
    assert answers == [Settled.BUSY if number == 2 else Settled.APPLIED for number in range(6)]


def test_the_others_are_renewed_and_the_locked_one_is_busy(backend: PostgresBackend, queue: Any) -> None:
    put_many(queue, 3)
    leases = take(queue, 3)
    with backend.row_locked(leases[0].job.id):
        start = time.monotonic()
        assert queue.extend(leases) == [Held.BUSY, Held.YES, Held.YES]
        assert time.monotonic() - start < 5
    assert queue.extend(leases) == [Held.YES] * 3


def test_a_locked_row_is_not_recovered_and_hides_nobody(backend: PostgresBackend, queue: Any) -> None:
    put_many(queue, 3)
    leases = take(queue, 3)
    backend.pass_time(VISIBILITY + 1)
    with backend.row_locked(leases[0].job.id):
        start = time.monotonic()
        assert queue.recover() == 2
        assert time.monotonic() - start < 5
        assert sorted(ids(claim(queue))) == sorted(ids(leases[1:]))
    assert extend(queue, leases[0]) is Held.YES


def test_a_ready_row_that_is_locked_hides_nobody(backend: PostgresBackend, queue: Any) -> None:
    jobs = [job.id for job in put_many(queue, 3)]
    with backend.row_locked(jobs[0]):
        start = time.monotonic()
        assert sorted(ids(claim(queue))) == sorted(jobs[1:])
        assert time.monotonic() - start < 5
    assert ids(take(queue, 1)) == [jobs[0]]


def test_a_stale_token_on_a_locked_row_is_never_applied(backend: PostgresBackend, queue: Any) -> None:
    put_many(queue, 1)
    [stale] = take(queue, 1)
    backend.pass_time(VISIBILITY + 1)
    queue.recover()
    [current] = take(queue, 1)
    with backend.row_locked(stale.job.id):
        assert settle(queue, stale, Done()) in (Settled.BUSY, Settled.REFUSED)
        assert extend(queue, stale) in (Held.BUSY, Held.LOST)
    assert settle(queue, stale, Done()) is Settled.REFUSED
    assert settle(queue, current, Done()) is Settled.APPLIED


@needs(SharesTransaction)
def test_a_handlers_own_open_transaction_is_busy_until_it_ends(backend: PostgresBackend, queue: Any) -> None:
    put_many(queue, 2)
    mine, other = take(queue, 2)
    with backend.session() as session:
        assert queue.complete_in(session, mine) is True
        session.flush()
        assert queue.extend([mine, other]) == [Held.BUSY, Held.YES]
        assert queue.settle([Settlement(mine, Done()), Settlement(other, Done())]) == [Settled.BUSY, Settled.APPLIED]
    assert settle(queue, mine, Done()) is Settled.REFUSED
    assert queue.committed(mine) is True


def test_a_row_that_is_merely_referenced_is_not_locked(backend: PostgresBackend, queue: Any) -> None:
    # What a foreign key of the application's takes on the job it points to, for as long as its transaction is open.
    put_many(queue, 1)
    [job_id] = ids(queue.jobs())
    with backend.row_locked(job_id, "KEY SHARE"):
        [lease] = take(queue, 1)
        assert extend(queue, lease) is Held.YES
        assert settle(queue, lease, Retry(1000)) is Settled.APPLIED
