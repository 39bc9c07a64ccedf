"""Who gets which job, when, and in what order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from jfast_sync.outcome import Done
from jfast_sync.ports import Settled
from tests.contract.backends import Backend, FineOrder, SelectsTasks, needs
from tests.contract.steps import all_at_once, claim, ids, meanwhile, put, put_many, seconds, settle, take, take_one


def test_never_more_than_the_limit(queue: Any) -> None:
    put_many(queue, 7)
    assert len(claim(queue, 3, 5)) == 3
    assert len(take(queue, 4)) == 4
    assert claim(queue) == []


def test_a_lease_says_what_was_claimed(backend: Backend, queue: Any) -> None:
    job = put(queue)
    lease = take_one(queue)
    assert lease.job.id == job.id
    assert lease.job.attempts == 1
    assert (lease.lapses, lease.snoozed_since, lease.alone) == (0, None, False)
    assert lease.claimed_at.utcoffset() == timedelta(0)
    assert abs(lease.claimed_at - backend.now()) < seconds(60)


def test_every_claim_has_a_token_of_its_own(queue: Any) -> None:
    put_many(queue, 50)
    assert len({lease.token for lease in take(queue, 50)}) == 50


@needs(FineOrder)
def test_the_higher_priority_comes_first(queue: Any) -> None:
    for priority in (0, -9, 9, 1, -1):
        put(queue, priority=priority)
    assert [lease.job.priority for lease in [take_one(queue) for _ in range(5)]] == [9, 1, 0, -1, -9]


@needs(FineOrder)
def test_one_batch_is_ordered_too(queue: Any) -> None:
    for priority in (0, -9, 9, 1, -1):
        put(queue, priority=priority)
    assert [lease.job.priority for lease in claim(queue, 5, 5)] == [9, 1, 0, -1, -9]


@needs(FineOrder)
def test_within_a_priority_the_longest_due_comes_first(backend: Backend, queue: Any) -> None:
    now = backend.now()
    for name, ago in (("b", 200), ("d", 50), ("a", 300), ("c", 100)):
        put(queue, id=name, available_at=now - seconds(ago))
    assert ids(take_one(queue) for _ in range(4)) == ["a", "b", "c", "d"]


def test_first_come_first_served(backend: Backend, queue: Any) -> None:
    jobs = []
    for _ in range(5):
        jobs.append(put(queue).id)
        backend.pass_time(1)
    assert ids(take_one(queue) for _ in range(5)) == jobs


def test_a_high_priority_does_not_make_a_delayed_job_early(backend: Backend, queue: Any) -> None:
    put(queue, id="later", priority=9, delay=seconds(1000))
    put(queue, id="now", priority=-9)
    assert ids(take(queue, 1)) == ["now"]
    assert claim(queue) == []
    backend.pass_time(1001)
    assert ids(take(queue, 1)) == ["later"]


@pytest.mark.parametrize("how", ["delay", "available_at"])
def test_never_early(backend: Backend, queue: Any, how: str) -> None:
    when = seconds(3600) if how == "delay" else backend.now() + seconds(3600)
    put(queue, **{how: when})
    for _ in range(3):
        assert claim(queue) == []
        backend.pass_time(1160)
    assert claim(queue) == []
    backend.pass_time(121)
    take_one(queue)


def test_only_the_queues_asked_for(queue: Any) -> None:
    for name in ("mail", "print", "default"):
        put(queue, id=name, queue=name)
    assert claim(queue, queues=["other"]) == []
    assert ids(take(queue, 1, queues=["mail", "other"])) == ["mail"]
    assert claim(queue, queues=["mail", "other"]) == []
    assert sorted(ids(take(queue, 2))) == ["default", "print"]


@needs(SelectsTasks)
def test_only_the_tasks_asked_for(queue: Any) -> None:
    for name in ("a", "b", "c"):
        put(queue, id=name, task=name)
    assert claim(queue, tasks=["other"]) == []
    assert sorted(ids(take(queue, 2, tasks=["a", "c", "other"]))) == ["a", "c"]
    assert claim(queue, tasks=["a", "c"]) == []
    assert ids(take(queue, 1)) == ["b"]


@needs(SelectsTasks)
def test_queues_and_tasks_both_hold(queue: Any) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        put(queue, id=name, task=name[0], queue=name[1])
    assert ids(take(queue, 1, tasks=["a"], queues=["2"])) == ["a2"]
    assert claim(queue, tasks=["a"], queues=["2"]) == []


def test_an_empty_selection_takes_nothing(queue: Any) -> None:
    put(queue)
    assert claim(queue, queues=[]) == []
    take_one(queue)


@needs(SelectsTasks)
def test_an_empty_selection_of_tasks_takes_nothing(queue: Any) -> None:
    put(queue)
    assert claim(queue, tasks=[]) == []
    take_one(queue)


def test_what_is_not_asked_for_hides_nothing(queue: Any) -> None:
    put_many(queue, 300, task="noise", queue="noise", priority=9)
    wanted = put(queue, task="wanted", queue="wanted", priority=-9)
    assert ids(take(queue, 1, queues=["wanted"])) == [wanted.id]


@needs(SelectsTasks)
def test_what_is_not_asked_for_by_task_hides_nothing(queue: Any) -> None:
    put_many(queue, 300, task="noise", priority=9)
    wanted = put(queue, task="wanted", priority=-9)
    assert ids(take(queue, 1, tasks=["wanted"])) == [wanted.id]


@needs(FineOrder)
def test_order_holds_across_several_queues_and_tasks(queue: Any) -> None:
    for number, (task, name) in enumerate([("a", "x"), ("b", "y"), ("a", "y"), ("b", "x")]):
        put(queue, task=task, queue=name, priority=number)
    assert [take_one(queue, queues=["x", "y"]).job.priority for _ in range(4)] == [3, 2, 1, 0]


def test_a_claim_that_finds_nothing_waits_as_long_as_asked(queue: Any) -> None:
    start = time.monotonic()
    assert claim(queue, wait=0.3) == []
    assert 0.3 <= time.monotonic() - start < 5


def test_a_claim_that_may_not_wait_does_not(queue: Any) -> None:
    start = time.monotonic()
    assert claim(queue, wait=0) == []
    assert time.monotonic() - start < 2


def test_an_enqueue_elsewhere_ends_the_wait(backend: Backend) -> None:
    waiting, other = backend.open(patient=True), backend.open(patient=True)
    with meanwhile(lambda: claim(waiting, 1, 30)) as claimed:
        start = time.monotonic()
        job = put(other)
        assert ids(claimed.result(20)) == [job.id]
    assert time.monotonic() - start < 5


def test_an_enqueue_here_ends_the_wait(backend: Backend) -> None:
    queue = backend.open(patient=True)
    with meanwhile(lambda: claim(queue, 1, 30)) as claimed:
        start = time.monotonic()
        job = put(queue)
        assert ids(claimed.result(20)) == [job.id]
    assert time.monotonic() - start < 5


def test_several_waiting_claims_share_what_comes(backend: Backend) -> None:
    first, second, other = (backend.open(patient=True) for _ in range(3))
    with meanwhile(lambda: take(first, 1)) as one, meanwhile(lambda: take(second, 1)) as two:
        jobs = [put(other).id, put(other).id]
        assert sorted(ids(one.result(20)) + ids(two.result(20))) == sorted(jobs)


def test_a_job_that_becomes_due_ends_the_wait(backend: Backend, queue: Any) -> None:
    job = put(queue, delay=seconds(3600))
    with meanwhile(lambda: claim(queue, 1, 30)) as claimed:
        backend.pass_time(3601)
        assert ids(claimed.result(20)) == [job.id]


def test_wake_ends_the_wait(backend: Backend) -> None:
    queue = backend.open(patient=True)
    start = time.monotonic()
    with meanwhile(lambda: claim(queue, 1, 30)) as claimed:
        queue.wake()
        assert claimed.result(20) == []
    assert time.monotonic() - start < 5


def test_wake_before_the_claim_ends_its_wait_too(backend: Backend) -> None:
    # Or a stop that comes between the worker's look at its flag and the claim would be slept through.
    queue = backend.open(patient=True)
    queue.wake()
    queue.wake()
    start = time.monotonic()
    assert claim(queue, 1, 30) == []
    assert time.monotonic() - start < 5


def test_wake_is_for_one_claim(queue: Any) -> None:
    queue.wake()
    assert claim(queue, 1, 30) == []
    start = time.monotonic()
    assert claim(queue, wait=0.3) == []
    assert time.monotonic() - start >= 0.3


def test_a_wake_keeps_no_due_job_back(queue: Any) -> None:
    job = put(queue)
    queue.wake()
    assert ids(take(queue, 1)) == [job.id]


@contextmanager
def _handling(number: signal.Signals, queue: Any) -> Iterator[None]:
    before = signal.signal(number, lambda _number, _frame: queue.wake())
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_signal_handler_may_wake(backend: Backend) -> None:
    queue = backend.open(patient=True)
    with _handling(signal.SIGUSR1, queue):
        sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        start = time.monotonic()
        sender.start()
        assert claim(queue, 1, 30) == []
        sender.join()
    assert time.monotonic() - start < 10


def test_a_signal_at_any_moment_does_no_harm(queue: Any) -> None:
    with _handling(signal.SIGALRM, queue):
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for _ in range(40):
                put(queue)
                assert settle(queue, take_one(queue), Done()) is Settled.APPLIED
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert (queue.stats().ready, queue.stats().running) == (0, 0)


def test_many_processes_get_each_job_once(backend: Backend) -> None:
    total, queues = 400, [backend.open() for _ in range(5)]
    put_many(queues[0], total)

    def work(queue: Any) -> list[str]:
        done: list[str] = []
        while leases := claim(queue, 7):
            done += ids(leases)
            for lease in leases:
                assert settle(queue, lease, Done()) is Settled.APPLIED
        return done

    def drain(queue: Any) -> list[str]:
        # A claim may come back empty while others hold the rows it looked at; the job is not lost by that.
        done: list[str] = []
        while True:
            done += work(queue)
            if queue.stats().ready == 0:
                return done

    ran: list[str] = sum(all_at_once(partial(drain, queue) for queue in queues), [])
    assert len(ran) == total
    assert len(set(ran)) == total
    assert (queues[0].stats().ready, queues[0].stats().running) == (0, 0)


def test_enqueue_and_claim_at_the_same_time_lose_nothing(backend: Backend) -> None:
    producers, consumers = [backend.open() for _ in range(2)], [backend.open() for _ in range(2)]
    done, lock = set[str](), threading.Lock()

    def produce(queue: Any) -> list[str]:
        return [put(queue).id for _ in range(60)]

    def consume(queue: Any) -> list[str]:
        mine: list[str] = []
        while True:
            with lock:
                if len(done) == 120:
                    return mine
            for lease in claim(queue, 5, 0.2):
                assert settle(queue, lease, Done()) is Settled.APPLIED
                mine.append(lease.job.id)
                with lock:
                    done.add(lease.job.id)

    work = [partial(produce, queue) for queue in producers]
    work += [partial(consume, queue) for queue in consumers]
    first, second, *ran = all_at_once(work)
    assert sorted(sum(ran, [])) == sorted(first + second)
