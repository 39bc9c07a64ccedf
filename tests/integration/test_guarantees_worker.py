"""Observers, forks and given-up threads: what is told once, and what can change nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jfast_sync.job import Job
from jfast_sync.observers import JobEvent
from jfast_sync.tasks import TaskSession
from tests.integration.test_worker_sql import bench, database, effects, insert
from tests.waiting import eventually
from tests.worker_harness import Bench

__all__ = ["bench", "database"]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_given_up_thread_that_comes_back_is_not_told_of_again(bench: Bench, gate: threading.Event) -> None:
    told: list[str] = []
    back: list[str] = []
    for moment in ("success", "failure", "dead"):
        bench.observers.add(moment, lambda event, moment=moment: told.append(moment))  # type: ignore[misc]

    @bench.tasks.task("deaf", timeout=0.2)
    def deaf(payload: dict[str, Any]) -> None:
        gate.wait(30)
        back.append(threading.current_thread().name)

    bench.enqueue("deaf", max_attempts=1)
    with bench.running() as worker:
        bench.when(dead=1)
        eventually(lambda: list(told), until=lambda seen: len(seen) == 2, what="both moments")
        gate.set()
        eventually(lambda: worker.abandoned_threads, until=lambda alive: not alive, what="the thread's end")

    assert back
    assert told == ["failure", "dead"]


@pytest.mark.parametrize("end", ["timeout", "drain"])
def test_an_observer_that_blocks_does_not_change_how_a_job_ended(bench: Bench, gate: threading.Event, end: str) -> None:
    told: list[str] = []
    ran: list[int] = []

    def blocks(event: JobEvent) -> None:
        told.append("success")
        gate.wait(30)

    bench.observers.add("success", blocks)
    bench.observers.add("failure", lambda event: told.append("failure"))

    @bench.tasks.task("done")
    def done(payload: dict[str, Any], job: Job) -> None:
        ran.append(job.attempts)

    (job_id,) = bench.enqueue("done")
    with bench.running(job_timeout=0.2 if end == "timeout" else 60.0, grace=0.1) as worker:
        eventually(lambda: list(told), until=bool, what="the observer")
        if end == "timeout":
            eventually(lambda: bench.queue.find(job_id), until=lambda row: row is None, what="the completion")
    gate.set()

    assert bench.queue.find(job_id) is None
    assert (ran, told) == ([1], ["success"])
    assert (worker.counts.done, worker.counts.failed, worker.counts.released) == (1, 0, 0)


def test_an_observer_that_blocks_holds_up_no_other_jobs_timeout(bench: Bench, gate: threading.Event) -> None:
    def blocks(event: JobEvent) -> None:
        gate.wait(30)

    bench.observers.add("failure", blocks)

    @bench.tasks.task("deaf", timeout=0.2)
    def deaf(payload: dict[str, Any]) -> None:
        gate.wait(30)

    bench.enqueue("deaf", count=3, max_attempts=1)
    with bench.running(threads=1, max_abandoned=10):
        bench.when(dead=3)
        gate.set()


def test_an_observer_that_leaves_is_logged_like_one_that_raises(bench: Bench) -> None:
    bench.observers.add("start", lambda event: sys.exit(3))
    bench.enqueue("write")
    assert bench.drain().counts.done == 1


@pytest.mark.parametrize("way", ["returns", "raises", "exits"])
def test_a_forked_child_that_comes_out_of_the_handler_ends_there(bench: Bench, way: str) -> None:
    """It shares the worker's connection: its rollback would be the parent's."""
    codes: list[int] = []

    @bench.tasks.task("forks")
    def forks(payload: dict[str, Any], session: TaskSession, job: Job) -> None:
        insert(session, job.attempts, job.id)
        child = os.fork()
        if not child:
            if way == "raises":
                raise ValueError("in the child")
            if way == "exits":
                sys.exit(0)
            return
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    bench.enqueue("forks")
    counts = bench.drain(threads=1).counts

    assert codes == [1 if way == "raises" else 0]
    assert (counts.done, counts.failed) == (1, 0)
    assert effects(bench) == [1]
