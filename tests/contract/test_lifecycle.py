"""Setting up, counting, closing: what holds for every backend besides its jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from jfast_sync.outcome import Done
from jfast_sync.ports import DeadLetters, Inspectable, Queue, SharesTransaction
from tests.contract.backends import VISIBILITY, Backend, CountsAll, LeaseClock, needs
from tests.contract.steps import all_at_once, bury, claim, ids, put, put_many, seconds, settle, take, take_one


def test_a_backend_can_what_it_declares_and_nothing_else(backend: Backend, queue: Any) -> None:
    assert isinstance(queue, Queue)
    for capability in (SharesTransaction, DeadLetters, Inspectable):
        assert isinstance(queue, capability) is (capability in backend.capabilities), capability


def test_a_backend_has_a_name(queue: Any) -> None:
    assert isinstance(queue.backend, str) and queue.backend


def test_setting_up_again_changes_nothing(backend: Backend, queue: Any) -> None:
    job = put(queue)
    queue.setup()
    backend.open().setup()
    assert ids(take(queue, 1)) == [job.id]


@pytest.mark.bare
def test_twenty_processes_set_up_at_once(backend: Backend) -> None:
    queues = [backend.open_bare() for _ in range(20)]
    all_at_once(queue.setup for queue in queues)
    job = put(queues[0])
    assert ids(take(queues[-1], 1)) == [job.id]


def test_setting_up_while_others_work(backend: Backend, queue: Any) -> None:
    def work() -> int:
        done = 0
        for _ in range(20):
            put(queue)
            settle(queue, take_one(queue), Done())
            done += 1
        return done

    assert all_at_once([work, lambda: [backend.open() for _ in range(5)]])[0] == 20


def test_closing_twice_is_closing_once(backend: Backend) -> None:
    queue = backend.open()
    put(queue)
    claim(queue)
    queue.close()
    queue.close()


def test_closing_before_any_use_is_fine(backend: Backend) -> None:
    backend.open_bare().close()


def test_closing_one_leaves_the_others(backend: Backend) -> None:
    one, two = backend.open(), backend.open()
    job = put(one)
    one.close()
    assert ids(take(two, 1)) == [job.id]


def test_an_empty_queue_counts_nothing(queue: Any) -> None:
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead, stats.oldest_ready) == (0, 0, 0, 0, None)
    assert (dict(stats.done_by_task), dict(stats.failed_by_task)) == ({}, {})


@needs(CountsAll)
def test_every_state_is_counted(backend: Backend, queue: Any) -> None:
    bury(queue)
    put_many(queue, 2)
    take(queue, 2)
    put_many(queue, 3, delay=seconds(1000))
    put_many(queue, 4)
    stats = backend.open().stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead) == (4, 3, 2, 1)


@needs(LeaseClock)
def test_what_became_due_is_ready_and_what_lapsed_runs_until_recovered(backend: Backend, queue: Any) -> None:
    put(queue)
    take_one(queue)
    put(queue, delay=seconds(1000))
    backend.pass_time(1001 + VISIBILITY)
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.running) == (1, 0, 1)
    queue.recover()
    assert (queue.stats().ready, queue.stats().running) == (2, 0)


@needs(CountsAll)
def test_the_oldest_ready_job_has_an_age(backend: Backend, queue: Any) -> None:
    put(queue, priority=-9)
    backend.pass_time(100)
    put(queue, priority=9)
    put(queue, delay=seconds(10_000))
    assert 100 <= queue.stats().oldest_ready < 120
    take(queue, 2)
    assert queue.stats().oldest_ready is None


@needs(CountsAll)
def test_counters_add_up_over_processes(backend: Backend, queue: Any) -> None:
    queue.record({"a": 2, "b": 1}, {"a": 1})
    backend.open().record({"a": 3}, {"c:%s": 5})
    queue.record({}, {})
    stats = queue.stats()
    assert dict(stats.done_by_task) == {"a": 5, "b": 1}
    assert dict(stats.failed_by_task) == {"a": 1, "c:%s": 5}


@needs(CountsAll)
def test_counters_recorded_at_once_all_count(backend: Backend) -> None:
    tasks = [f"task-{number}" for number in range(40)]
    orders = [dict.fromkeys(tasks, 1), dict.fromkeys(reversed(tasks), 1)]  # locks that could meet crosswise
    queues = [backend.open() for _ in range(4)]

    def record(queue: Any, counts: dict[str, int]) -> None:
        for _ in range(15):
            queue.record(counts, counts)

    all_at_once(partial(record, queue, counts) for queue, counts in zip(queues, orders * 2, strict=True))
    assert dict(queues[0].stats().done_by_task) == dict.fromkeys(tasks, 60)
    assert dict(queues[0].stats().failed_by_task) == dict.fromkeys(tasks, 60)


@pytest.mark.parametrize("attempts", [40_000, 2**31 - 3])
def test_attempts_beyond_a_small_integer(queue: Any, attempts: int) -> None:
    put(queue, attempts=attempts, max_attempts=2**31 - 1)
    assert take_one(queue).job.attempts == attempts + 1
