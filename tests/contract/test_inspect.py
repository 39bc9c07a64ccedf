"""Jobs are found by id, listed and cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from jfast_sync.outcome import CANCELLED, Done, Outcome, Release, Retry
from jfast_sync.ports import Cancelled, DeadLetters, Held, Inspectable, Settled
from tests.contract.backends import Backend, needs
from tests.contract.steps import bury, claim, extend, ids, put, put_many, seconds, settle, take_one

pytestmark = needs(Inspectable)


@pytest.fixture
def one_of_each(backend: Backend, queue: Any) -> Any:
    """A store with a job in every state that is always there; each job's id is its state."""
    bury(queue, id="dead", task="a", tenant_id="acme")
    put(queue, id="running", task="b", queue="mail")
    take_one(queue, worker="worker-1")
    put(queue, id="delayed", task="a", delay=seconds(1000))
    put(queue, id="ready", task="b", tenant_id="acme")
    return queue


def test_a_job_is_found_in_every_state(one_of_each: Any) -> None:
    for state in ("ready", "delayed", "running", "dead"):
        row = one_of_each.find(state)
        assert (row.job.id, row.state) == (state, state)
    assert one_of_each.find("unknown") is None


def test_a_found_job_shows_itself(backend: Backend, queue: Any) -> None:
    put(queue, id="x", task="invoice.send", payload={"n": 1}, tenant_id="acme", queue="mail", priority=4)
    settle(queue, take_one(queue), Retry(1000, error="ValueError: not yet"))
    row = queue.find("x")
    job = row.job
    assert (row.state, row.worker) == ("delayed", None)
    assert (job.task, job.payload, job.tenant_id, job.queue, job.priority) == (
        "invoice.send", {"n": 1}, "acme", "mail", 4,
    )  # fmt: skip
    assert (job.attempts, job.max_attempts, job.error) == (1, 3, "ValueError: not yet")
    assert seconds(900) < job.available_at - backend.now() < seconds(1060)
    assert abs(job.created_at - backend.now()) < seconds(60)


def test_a_running_job_shows_its_worker(one_of_each: Any) -> None:
    assert one_of_each.find("running").worker == "worker-1"
    assert one_of_each.find("ready").worker is None


def test_a_delayed_job_that_became_due_is_ready(backend: Backend, queue: Any) -> None:
    put(queue, id="x", delay=seconds(1000))
    backend.pass_time(1001)
    assert queue.find("x").state == "ready"
    assert ids(queue.jobs(state="ready")) == ["x"]
    assert queue.jobs(state="delayed") == []


def test_a_finished_job_is_gone_unless_kept(backend: Backend, queue: Any) -> None:
    put(queue, id="x")
    settle(queue, take_one(queue), Done())
    assert queue.find("x") is None
    assert queue.jobs() == []


def test_kept_jobs_say_when_they_ended_and_how_long_they_ran(backend: Backend) -> None:
    queue = backend.open(keep_done=1000.0)
    put(queue, id="x", payload={"n": 1})
    lease = take_one(queue)
    backend.pass_time(30)
    assert settle(queue, lease, Done()) is Settled.APPLIED
    row = queue.find("x")
    assert (row.state, row.job.payload, row.job.attempts) == ("done", {"n": 1}, 1)
    assert abs(row.finished_at - backend.now()) < seconds(20)
    assert 30 <= row.ran_seconds < 50
    assert ids(queue.jobs(state="done")) == ["x"]
    assert claim(queue) == []
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead) == (0, 0, 0, 0)


def test_kept_jobs_go_when_their_time_is_over(backend: Backend) -> None:
    queue = backend.open(keep_done=1000.0)
    put(queue, id="x")
    settle(queue, take_one(queue), Done())
    backend.pass_time(900)
    queue.recover()
    assert queue.find("x").state == "done"
    backend.pass_time(200)
    queue.recover()
    assert queue.find("x") is None


def test_a_listing_goes_by_state(one_of_each: Any) -> None:
    assert ids(one_of_each.jobs()) == ["running", "ready", "delayed", "dead"]
    for state in ("running", "ready", "delayed", "dead"):
        rows = one_of_each.jobs(state=state)
        assert [(row.job.id, row.state) for row in rows] == [(state, state)]
    assert one_of_each.jobs(state="done") == []


def test_within_a_state_a_listing_goes_as_jobs_are_claimed(backend: Backend, queue: Any) -> None:
    now = backend.now()
    for name, priority, ago in (("c", 0, 100), ("a", 5, 10), ("b", 0, 200), ("d", -5, 900)):
        put(queue, id=name, priority=priority, available_at=now - seconds(ago))
    listed = ids(queue.jobs(state="ready"))
    assert listed == ["a", "b", "c", "d"]
    assert ids(take_one(queue) for _ in range(4)) == listed


def test_a_listing_is_filtered(one_of_each: Any) -> None:
    assert ids(one_of_each.jobs(task="a")) == ["delayed", "dead"]
    assert ids(one_of_each.jobs(queue="mail")) == ["running"]
    assert ids(one_of_each.jobs(tenant_id="acme")) == ["ready", "dead"]
    assert ids(one_of_each.jobs(task="b", tenant_id="acme")) == ["ready"]
    assert ids(one_of_each.jobs(task="a", state="dead")) == ["dead"]
    assert one_of_each.jobs(task="a", queue="mail") == []


def test_a_listing_is_limited(one_of_each: Any) -> None:
    assert ids(one_of_each.jobs(limit=2)) == ["running", "ready"]
    put_many(one_of_each, 60)
    assert len(one_of_each.jobs()) == 50


@pytest.mark.parametrize("state", ["ready", "delayed"])
def test_a_waiting_job_is_removed(one_of_each: Any, state: str) -> None:
    assert one_of_each.cancel(state) is Cancelled.REMOVED
    assert one_of_each.find(state) is None
    assert one_of_each.cancel(state) is Cancelled.UNKNOWN


def test_a_running_job_is_told(backend: Backend, queue: Any) -> None:
    put_many(queue, 2)
    lease, other = take_one(queue), take_one(queue)
    assert backend.open().cancel(lease.job.id) is Cancelled.TOLD
    assert queue.extend([other, lease]) == [Held.YES, Held.CANCEL]
    assert extend(queue, lease) is Held.CANCEL
    assert settle(queue, lease, Done()) is Settled.APPLIED


def test_telling_a_job_renews_it_too(backend: Backend, queue: Any) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    queue.cancel("x")
    for _ in range(3):
        backend.pass_time(40)
        assert extend(queue, lease) is Held.CANCEL
        assert queue.recover() == 0


@needs(DeadLetters)
@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Retry(60, error="ValueError: no"), f"{CANCELLED}: ValueError: no"),
        (Retry(0), CANCELLED),
        (Retry(60, error="Snooze", refund=True, snooze=True), f"{CANCELLED}: Snooze"),
        (Release(), CANCELLED),
    ],
    ids=["failed", "again at once", "snoozed", "released"],
)
def test_a_job_cancelled_while_it_ran_does_not_wait_again(
    backend: Backend, queue: Any, outcome: Outcome, error: str
) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    queue.cancel("x")
    assert settle(queue, lease, outcome) is Settled.APPLIED
    backend.pass_time(61)
    assert claim(queue) == []
    assert queue.find_dead("x").job.error == error


@needs(DeadLetters)
def test_a_cancelled_job_whose_worker_vanished_does_not_wait_again(backend: Backend, queue: Any) -> None:
    put(queue, id="x")
    take_one(queue)
    queue.cancel("x")
    backend.pass_time(61)
    assert queue.recover() == 1
    assert claim(queue) == []
    assert queue.find_dead("x").job.error.startswith(f"{CANCELLED}: ")


@needs(DeadLetters)
def test_a_replayed_job_is_not_told_again(queue: Any) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    queue.cancel("x")
    settle(queue, lease, Release())
    queue.revive(["x"])
    assert extend(queue, take_one(queue)) is Held.YES


@needs(DeadLetters)
def test_a_dead_letter_is_not_cancelled(one_of_each: Any) -> None:
    assert one_of_each.cancel("dead") is Cancelled.DEAD
    assert one_of_each.find_dead("dead") is not None


def test_an_unknown_job_is_unknown(one_of_each: Any) -> None:
    assert one_of_each.cancel("unknown") is Cancelled.UNKNOWN
