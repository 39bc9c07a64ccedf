"""What each outcome leaves behind, and that only the holder of the current token can write one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jfast_sync.outcome import Bury, Done, Release, Retry, Settlement
from jfast_sync.ports import DeadLetters, Held, Settled
from tests.contract.backends import VISIBILITY, Backend, LeaseClock, needs
from tests.contract.steps import (
    OUTCOMES,
    claim,
    extend,
    ids,
    meanwhile,
    put,
    put_many,
    seconds,
    settle,
    take,
    take_one,
)


def test_done_removes_the_job(backend: Backend, queue: Any) -> None:
    put(queue)
    assert settle(queue, take_one(queue), Done()) is Settled.APPLIED
    backend.pass_time(10_000)
    assert queue.recover() == 0
    assert claim(queue) == []
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead) == (0, 0, 0, 0)


def test_a_retry_waits_and_spends_the_attempt(backend: Backend, queue: Any) -> None:
    job = put(queue, payload={"n": 1}, tenant_id="acme")
    assert settle(queue, take_one(queue), Retry(1000, error="ValueError: not yet")) is Settled.APPLIED
    assert queue.stats().delayed == 1
    backend.pass_time(900)
    assert claim(queue) == []
    backend.pass_time(101)
    lease = take_one(queue)
    assert lease.job.attempts == 2
    assert lease.job.error == "ValueError: not yet"
    assert (lease.job.id, lease.job.payload, lease.job.tenant_id) == (job.id, {"n": 1}, "acme")
    assert (lease.lapses, lease.snoozed_since) == (0, None)


def test_a_retry_without_delay_is_due_at_once(queue: Any) -> None:
    put(queue)
    settle(queue, take_one(queue), Retry(0))
    assert take_one(queue).job.attempts == 2


def test_a_retry_until_an_instant_waits_for_it(backend: Backend, queue: Any) -> None:
    put(queue)
    settle(queue, take_one(queue), Retry(0, until=backend.now() + seconds(1000)))
    backend.pass_time(900)
    assert claim(queue) == []
    backend.pass_time(101)
    assert take_one(queue).job.attempts == 2


def test_a_retry_until_an_instant_that_has_passed_is_due_at_once(backend: Backend, queue: Any) -> None:
    put(queue)
    settle(queue, take_one(queue), Retry(500, until=backend.now() - seconds(10)))
    take_one(queue)


def test_a_refunded_retry_spends_no_attempt(backend: Backend, queue: Any) -> None:
    put(queue, max_attempts=1)
    for _ in range(3):
        lease = take_one(queue)
        assert lease.job.attempts == 1
        settle(queue, lease, Retry(100, refund=True, error="LockTimeout: waited"))
        assert claim(queue) == []
        backend.pass_time(101)
    assert take_one(queue).snoozed_since is None


def test_snoozing_counts_from_the_first_snooze(backend: Backend, queue: Any) -> None:
    put(queue)
    first = take_one(queue)
    assert first.snoozed_since is None
    settle(queue, first, Retry(100, refund=True, snooze=True))
    backend.pass_time(101)
    second = take_one(queue)
    assert second.job.attempts == 1
    since = second.snoozed_since
    assert since is not None and since.utcoffset() == timedelta(0)
    # Where time passes by moving what is stored, the first claim has moved too: compare ages, not instants.
    assert abs((second.claimed_at - since) - seconds(101)) < seconds(20)
    settle(queue, second, Retry(100, refund=True, snooze=True))
    backend.pass_time(101)
    third = take_one(queue)
    assert third.snoozed_since is not None
    assert abs((third.claimed_at - third.snoozed_since) - seconds(202)) < seconds(20)


def test_a_failure_between_two_snoozes_does_not_start_the_age_again(backend: Backend, queue: Any) -> None:
    put(queue, max_attempts=5)
    settle(queue, take_one(queue), Retry(100, refund=True, snooze=True))
    for outcome in (Retry(0, error="ValueError: no"), Release(), Retry(0, refund=True)):
        backend.pass_time(101)
        settle(queue, take_one(queue), outcome)
    lease = take_one(queue)
    assert lease.snoozed_since is not None
    assert abs((lease.claimed_at - lease.snoozed_since) - seconds(303)) < seconds(20)


def test_release_gives_the_attempt_back_at_once(queue: Any) -> None:
    put(queue, max_attempts=1)
    for _ in range(5):
        lease = take_one(queue)
        assert (lease.job.attempts, lease.lapses) == (1, 0)
        assert settle(queue, lease, Release()) is Settled.APPLIED
    assert (queue.stats().ready, queue.stats().running) == (1, 0)


def test_release_ends_the_wait_of_another(backend: Backend, queue: Any) -> None:
    job = put(queue)
    lease = take_one(queue)
    other = backend.open()
    with meanwhile(lambda: claim(other, 1, 30)) as claimed:
        settle(queue, lease, Release())
        assert ids(claimed.result(20)) == [job.id]


@needs(DeadLetters)
def test_bury_makes_a_dead_letter_that_keeps_everything(backend: Backend, queue: Any) -> None:
    job = put(queue, task="invoice.send", payload={"n": 1}, tenant_id="acme", request_id="req-1", queue="mail")
    assert settle(queue, take_one(queue), Bury("ValueError: no", "Traceback: line 1\nline 2")) is Settled.APPLIED
    backend.pass_time(10_000)
    assert queue.recover() == 0
    assert claim(queue) == []
    letter = queue.find_dead(job.id)
    assert (letter.job.error, letter.traceback, letter.raw) == ("ValueError: no", "Traceback: line 1\nline 2", None)
    assert (letter.job.payload, letter.job.attempts, letter.job.max_attempts) == ({"n": 1}, 1, 3)
    assert (letter.job.task, letter.job.tenant_id, letter.job.request_id) == ("invoice.send", "acme", "req-1")
    assert letter.job.queue == "mail"


def test_what_a_handler_does_to_its_payload_is_not_stored(queue: Any) -> None:
    payload = {"list": [1], "map": {"a": 1}}
    put(queue, payload=payload)
    payload["list"].append(2)  # type: ignore[attr-defined]
    for _ in range(2):
        lease = take_one(queue)
        assert lease.job.payload == {"list": [1], "map": {"a": 1}}
        lease.job.payload["list"].append(2)
        lease.job.payload["map"].clear()
        settle(queue, lease, Retry(0))


def test_a_batch_is_answered_in_order(backend: Backend, queue: Any) -> None:
    put_many(queue, 12)
    leases = take(queue, 12)
    outcomes = [*OUTCOMES.values(), *OUTCOMES.values(), Done(), Done()]
    stale = {1, 4, 7}
    batch = [
        Settlement(replace(lease, token="0" * 32) if number in stale else lease, outcome)
        for number, (lease, outcome) in enumerate(zip(leases, outcomes, strict=True))
    ]
    answers = queue.settle(batch)
    assert answers == [Settled.REFUSED if number in stale else Settled.APPLIED for number in range(12)]
    stats = queue.stats()
    # Refused: a retry (1), a release (4) and a snooze (7), of two each of every outcome.
    assert (stats.running, stats.ready, stats.delayed, stats.dead) == (3, 1, 2, 2)


def test_an_empty_batch_has_no_answers(queue: Any) -> None:
    assert queue.settle([]) == []
    assert queue.extend([]) == []


def test_a_large_batch_is_settled_whole(queue: Any) -> None:
    put_many(queue, 1200)
    leases = take(queue, 1200)
    assert queue.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.APPLIED] * 1200
    assert queue.stats().running == 0


@needs(LeaseClock)
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_token_that_was_overtaken_changes_nothing(backend: Backend, queue: Any, outcome: Any) -> None:
    put(queue, max_attempts=5)
    stale = take_one(queue, worker="paused")
    backend.pass_time(VISIBILITY + 1)
    other = backend.open()
    assert other.recover() == 1
    current = take_one(other, worker="successor")
    assert current.token != stale.token

    assert settle(queue, stale, outcome) is Settled.REFUSED
    assert extend(queue, stale) is Held.LOST
    assert queue.stats().running == 1
    assert extend(other, current) is Held.YES
    assert settle(other, current, Release()) is Settled.APPLIED
    after = take_one(queue)
    assert (after.job.attempts, after.lapses, after.snoozed_since) == (current.job.attempts, 1, None)


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
@pytest.mark.parametrize("before", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_lease_is_settled_once(queue: Any, before: Any, outcome: Any) -> None:
    put(queue)
    lease = take_one(queue)
    assert settle(queue, lease, before) is Settled.APPLIED
    stats = queue.stats()
    assert settle(queue, lease, outcome) is Settled.REFUSED
    assert extend(queue, lease) is Held.LOST
    again = queue.stats()
    assert (again.ready, again.delayed, again.running, again.dead) == (
        stats.ready, stats.delayed, stats.running, stats.dead,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_token_of_the_same_workers_earlier_start_is_stale(queue: Any, outcome: Any) -> None:
    put(queue, max_attempts=5)
    first = take_one(queue)
    settle(queue, first, Release())
    second = take_one(queue)
    assert settle(queue, first, outcome) is Settled.REFUSED
    assert settle(queue, second, Done()) is Settled.APPLIED


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_an_invented_token_is_refused(queue: Any, outcome: Any) -> None:
    put(queue)
    lease = take_one(queue)
    for token in ("", "0" * 32, "x", lease.token + "x"):
        assert settle(queue, replace(lease, token=token), outcome) is Settled.REFUSED
        assert extend(queue, replace(lease, token=token)) is Held.LOST
    assert settle(queue, lease, Done()) is Settled.APPLIED


def test_a_token_fits_its_own_job_only(queue: Any) -> None:
    put_many(queue, 2)
    one, two = take(queue, 2)
    assert settle(queue, replace(one, token=two.token), Done()) is Settled.REFUSED
    assert queue.stats().running == 2


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_lease_that_ran_out_but_that_nobody_took_is_current(backend: Backend, queue: Any, outcome: Any) -> None:
    put(queue)
    lease = take_one(queue)
    backend.pass_time(VISIBILITY * 10)
    assert settle(queue, lease, outcome) is Settled.APPLIED
    assert queue.recover() == 0
