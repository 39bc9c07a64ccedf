"""What `enqueue` stores, and that an id is stored once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from jfast_sync.outcome import Bury, Done
from jfast_sync.ports import Settled
from tests.contract.backends import Backend, DistinctIds, needs
from tests.contract.steps import a_job, all_at_once, claim, ids, put, put_many, seconds, settle, take, take_one


def test_ids_of_what_was_stored_come_back_in_order(queue: Any) -> None:
    jobs = [a_job(id=name) for name in ("c", "a", "b")]
    assert queue.enqueue(jobs) == ["c", "a", "b"]
    assert sorted(ids(take(queue, 3))) == ["a", "b", "c"]


def test_enqueueing_nothing_stores_nothing(queue: Any) -> None:
    assert queue.enqueue([]) == []
    assert claim(queue) == []


def test_a_large_batch_is_stored_whole(queue: Any) -> None:
    put_many(queue, 5000)
    assert queue.stats().ready == 5000


def test_every_field_survives(queue: Any) -> None:
    put(
        queue,
        task="invoice.send",
        id="given-by-the-caller",
        payload={"invoice": 7},
        queue="mail",
        priority=-3,
        max_attempts=9,
        request_id="req-1",
        tenant_id="acme",
        trace={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )
    job = take_one(queue).job
    assert (job.task, job.id, job.payload, job.queue, job.priority, job.attempts, job.max_attempts) == (
        "invoice.send", "given-by-the-caller", {"invoice": 7}, "mail", -3, 1, 9,
    )  # fmt: skip
    assert (job.request_id, job.tenant_id, job.error) == ("req-1", "acme", None)
    assert job.trace == {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def test_what_is_absent_stays_absent(queue: Any) -> None:
    put(queue, request_id=None, tenant_id=None, trace=None)
    job = take_one(queue).job
    assert (job.payload, job.request_id, job.tenant_id, job.trace, job.error) == ({}, None, None, None, None)
    assert (job.queue, job.priority, job.delay) == ("default", 0, None)


@pytest.mark.parametrize(
    "text", ["a:b", "50%", "%(x)s", ":name", "o'clock", 'a"b', "a\\b", "naïve-☃-😀", "{curly}", "x" * 120]
)
def test_names_are_text_and_nothing_else(queue: Any, text: str) -> None:
    put(queue, task=text, id=text, queue=text, tenant_id=text, request_id=text)
    [lease] = take(queue, 1, queues=[text])
    job = lease.job
    assert (job.task, job.id, job.queue, job.tenant_id, job.request_id) == (text,) * 5
    assert settle(queue, lease, Done()) is Settled.APPLIED


def test_the_backend_says_when_a_job_was_created(backend: Backend, queue: Any) -> None:
    put(queue, created_at=datetime(2001, 1, 1, tzinfo=UTC))
    created = take_one(queue).job.created_at
    assert created is not None and created.utcoffset() == timedelta(0)
    assert abs(created - backend.now()) < seconds(60)


def test_available_at_is_stored_as_the_same_instant_in_utc(backend: Backend, queue: Any) -> None:
    due = (backend.now() - seconds(100)).replace(microsecond=123456).astimezone(timezone(timedelta(hours=5)))
    put(queue, available_at=due)
    stored = take_one(queue).job.available_at
    assert stored == due and stored.utcoffset() == timedelta(0)


def test_an_instant_is_exact_to_the_microsecond(backend: Backend, queue: Any) -> None:
    start = backend.now() - timedelta(days=20_000)
    jobs = {f"job-{n}": start + timedelta(days=n * 1.37, microseconds=n * 104_729) for n in range(200)}
    queue.enqueue([a_job(id=name, available_at=due) for name, due in jobs.items()])
    leases = claim(queue, 200, 5)
    assert {lease.job.id: lease.job.available_at for lease in leases} == jobs
    assert ids(leases) == list(jobs)


def test_a_delay_counts_from_the_backends_clock(backend: Backend, queue: Any) -> None:
    put(queue, delay=seconds(3600))
    backend.pass_time(3601)
    job = take_one(queue).job
    assert job.delay is None
    assert job.available_at is not None and job.created_at is not None
    assert abs(job.available_at - job.created_at - seconds(3600)) < seconds(1)


@needs(DistinctIds)
def test_an_id_that_waits_is_left_as_it_is(queue: Any) -> None:
    put(queue, id="ready", payload={"n": 1})
    put(queue, id="delayed", delay=seconds(1000))
    again = [a_job(id="ready", payload={"n": 2}), a_job(id="new"), a_job(id="delayed")]
    assert queue.enqueue(again) == ["new"]
    leases = {lease.job.id: lease.job.payload for lease in take(queue, 2)}
    assert leases == {"ready": {"n": 1}, "new": {}}
    assert queue.stats().delayed == 1


@needs(DistinctIds)
def test_an_id_that_runs_is_left_as_it_is(queue: Any) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    assert queue.enqueue([a_job(id="x")]) == []
    assert claim(queue) == []
    assert settle(queue, lease, Done()) is Settled.APPLIED


@needs(DistinctIds)
def test_an_id_that_died_is_left_as_it_is(queue: Any) -> None:
    put(queue, id="x")
    settle(queue, take_one(queue), Bury("no"))
    assert queue.enqueue([a_job(id="x")]) == []
    assert claim(queue) == []
    assert queue.stats().dead == 1


@needs(DistinctIds)
def test_one_id_twice_in_a_batch_is_stored_once(queue: Any) -> None:
    assert queue.enqueue([a_job(id="x", payload={"n": 1}), a_job(id="y"), a_job(id="x", payload={"n": 2})]) == [
        "x",
        "y",
    ]
    payloads = {lease.job.id: lease.job.payload for lease in take(queue, 2)}
    assert payloads == {"x": {"n": 1}, "y": {}}
    assert claim(queue) == []


@needs(DistinctIds)
def test_the_id_of_a_finished_job_is_free_again(queue: Any) -> None:
    put(queue, id="x")
    settle(queue, take_one(queue), Done())
    put(queue, id="x", payload={"n": 2})
    assert take_one(queue).job.payload == {"n": 2}


@needs(DistinctIds)
def test_many_processes_that_enqueue_the_same_ids_store_each_once(backend: Backend) -> None:
    names = [f"job-{n}" for n in range(50)]
    queues = [backend.open() for _ in range(4)]
    orders = [names, names[::-1], names[25:] + names[:25], names]  # different orders, where locks could meet crosswise
    stored = all_at_once(
        partial(queue.enqueue, [a_job(id=name) for name in order]) for queue, order in zip(queues, orders, strict=True)
    )
    assert sorted(sum(stored, [])) == sorted(names)
    assert sorted(ids(take(queues[0], 50))) == sorted(names)
