"""Leases run out, are renewed, and come back: nothing is stuck, nobody loses a job that is still held."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from jfast_sync.outcome import Done, Release, Retry, Settlement
from jfast_sync.ports import Held, Settled
from tests.contract.backends import VISIBILITY, Backend, LeaseClock, needs
from tests.contract.steps import all_at_once, claim, extend, ids, put, put_many, settle, take, take_one

LAPSE = VISIBILITY + 1


def lapse(backend: Backend, queue: Any) -> None:
    """Let the one running lease lapse and be recovered."""
    backend.pass_time(LAPSE)
    assert queue.recover() == 1


def recover_all(queue: Any) -> int:
    """Recover until nothing is left to recover; an implementation may do it in batches."""
    total = 0
    while found := queue.recover():
        total += found
    return total


def test_a_leased_job_is_nobody_elses(backend: Backend, queue: Any) -> None:
    put(queue)
    take_one(queue)
    backend.pass_time(VISIBILITY - 10)
    other = backend.open()
    assert other.recover() == 0
    assert claim(other) == []


@needs(LeaseClock)
def test_two_tokens_of_one_job_in_one_call_are_told_apart(backend: Backend, queue: Any) -> None:
    """A worker holds both when it lost the first lease and was the one that claimed the job again."""
    put(queue)
    lost = take_one(queue)
    lapse(backend, queue)
    current = take_one(queue)
    assert queue.extend([lost, current]) == [Held.LOST, Held.YES]
    assert queue.extend([current, lost]) == [Held.YES, Held.LOST]
    settlements = [Settlement(lost, Retry(0.0, error="stale")), Settlement(current, Done())]
    assert queue.settle(settlements) == [Settled.REFUSED, Settled.APPLIED]


@needs(LeaseClock)
def test_extending_renews_for_a_full_visibility_timeout(backend: Backend, queue: Any) -> None:
    put(queue)
    lease = take_one(queue)
    for _ in range(3):
        backend.pass_time(VISIBILITY - 20)
        assert extend(queue, lease) is Held.YES
    backend.pass_time(VISIBILITY - 20)
    assert queue.recover() == 0
    backend.pass_time(21)
    assert queue.recover() == 1


def test_extensions_are_answered_in_order(queue: Any) -> None:
    put_many(queue, 5)
    leases = take(queue, 5)
    settle(queue, leases[1], Done())
    asked = [leases[0], leases[1], replace(leases[2], token="0" * 32), leases[3], leases[4]]
    assert queue.extend(asked) == [Held.YES, Held.LOST, Held.LOST, Held.YES, Held.YES]


def test_a_lease_that_ran_out_but_that_nobody_took_can_be_extended(backend: Backend, queue: Any) -> None:
    put(queue)
    lease = take_one(queue)
    backend.pass_time(VISIBILITY * 10)
    assert extend(queue, lease) is Held.YES
    assert queue.recover() == 0
    assert settle(queue, lease, Done()) is Settled.APPLIED


@needs(LeaseClock)
def test_a_recovered_lease_is_lost(backend: Backend, queue: Any) -> None:
    put(queue)
    lease = take_one(queue)
    lapse(backend, backend.open())
    assert extend(queue, lease) is Held.LOST
    assert settle(queue, lease, Done()) is Settled.REFUSED
    assert queue.stats().ready == 1


@needs(LeaseClock)
def test_recovery_spends_the_attempt_and_counts_the_lapse(backend: Backend, queue: Any) -> None:
    job = put(queue, max_attempts=5, payload={"n": 1}, tenant_id="acme")
    take_one(queue)
    lapse(backend, queue)
    lease = take_one(queue)
    assert (lease.job.id, lease.job.payload, lease.job.tenant_id) == (job.id, {"n": 1}, "acme")
    assert (lease.job.attempts, lease.lapses, lease.alone) == (2, 1, False)


@needs(LeaseClock)
def test_the_last_start_after_a_lapse_is_alone(backend: Backend, queue: Any) -> None:
    put(queue, max_attempts=3)
    seen = []
    for _ in range(5):
        lease = take_one(queue)
        seen.append((lease.job.attempts, lease.lapses, lease.alone))
        lapse(backend, queue)
    # The verdict is the worker's: however often the last start lapses, the queue keeps one more for it.
    assert seen == [(1, 0, False), (2, 1, False), (3, 2, True), (3, 3, True), (3, 4, True)]
    assert queue.stats().dead == 0


@needs(LeaseClock)
def test_a_job_with_one_attempt_starts_again_alone(backend: Backend, queue: Any) -> None:
    put(queue, max_attempts=1)
    assert take_one(queue).alone is False
    lapse(backend, queue)
    lease = take_one(queue)
    assert (lease.job.attempts, lease.lapses, lease.alone) == (1, 1, True)


@needs(LeaseClock)
def test_lapses_are_kept_through_a_retry_and_a_release(backend: Backend, queue: Any) -> None:
    put(queue, max_attempts=3)
    take_one(queue)
    lapse(backend, queue)
    settle(queue, take_one(queue), Release())
    settle(queue, take_one(queue), Retry(0))
    lease = take_one(queue)
    assert (lease.job.attempts, lease.lapses, lease.alone) == (3, 1, True)


@needs(LeaseClock)
def test_a_lapse_does_not_end_the_snoozing_age(backend: Backend, queue: Any) -> None:
    put(queue)
    settle(queue, take_one(queue), Retry(0, refund=True, snooze=True))
    assert take_one(queue).snoozed_since is not None
    lapse(backend, queue)
    assert take_one(queue).snoozed_since is not None


@needs(LeaseClock)
def test_recovery_leaves_what_is_held(backend: Backend, queue: Any) -> None:
    put_many(queue, 6)
    leases = take(queue, 6)
    backend.pass_time(VISIBILITY - 10)
    kept = leases[::2]
    assert queue.extend(kept) == [Held.YES] * 3
    backend.pass_time(20)
    assert recover_all(backend.open()) == 3
    assert sorted(ids(take(queue, 3))) == sorted(ids(leases[1::2]))
    assert queue.extend(kept) == [Held.YES] * 3


@needs(LeaseClock)
def test_recovery_leaves_ready_delayed_and_dead_jobs(backend: Backend, queue: Any) -> None:
    put(queue)
    put(queue, available_at=backend.now())
    backend.pass_time(LAPSE)
    assert queue.recover() == 0
    assert {lease.lapses for lease in take(queue, 2)} == {0}


@needs(LeaseClock)
def test_long_leases_do_not_hide_one_that_ran_out(backend: Backend) -> None:
    patient, hasty = backend.open(visibility_timeout=100_000.0), backend.open(visibility_timeout=VISIBILITY)
    put_many(patient, 10_000)
    take(patient, 10_000)
    job = put(patient)
    assert ids(take(hasty, 1)) == [job.id]
    backend.pass_time(LAPSE)
    assert hasty.recover() == 1
    assert ids(take(hasty, 1)) == [job.id]


@needs(LeaseClock)
def test_very_many_lapsed_leases_all_come_back(backend: Backend, queue: Any) -> None:
    jobs = put_many(queue, 2500)
    take(queue, 2500)
    backend.pass_time(LAPSE)
    assert recover_all(queue) == 2500
    leases = take(queue, 2500)
    assert sorted(ids(leases)) == sorted(job.id for job in jobs)
    assert {(lease.job.attempts, lease.lapses) for lease in leases} == {(2, 1)}


@needs(LeaseClock)
def test_several_processes_recover_each_lapse_once(backend: Backend) -> None:
    queues = [backend.open() for _ in range(4)]
    put_many(queues[0], 200)
    take(queues[0], 200)
    backend.pass_time(LAPSE)
    counted = all_at_once(partial(recover_all, queue) for queue in queues)
    counted.append(recover_all(queues[0]))
    assert sum(counted) == 200
    assert {lease.lapses for lease in take(queues[0], 200)} == {1}


@needs(LeaseClock)
def test_holders_and_recovery_at_the_same_time_agree(backend: Backend) -> None:
    """Whoever wins, each lapsed lease is either still its holder's or back in the queue, never both."""
    holder, other = backend.open(), backend.open()
    put_many(holder, 100)
    leases = take(holder, 100)
    backend.pass_time(LAPSE)
    answers, recovered = all_at_once(
        [lambda: [extend(holder, lease) for lease in leases], lambda: recover_all(other) + recover_all(other)]
    )
    # An extension that met a locked row was told BUSY: the other side has it.
    recovered += recover_all(other)
    assert answers.count(Held.YES) + recovered == 100
    after = holder.extend(leases)
    assert after.count(Held.YES) == answers.count(Held.YES)
    assert after.count(Held.LOST) == recovered
