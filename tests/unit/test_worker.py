"""What a worker does with jobs, on the queue in memory."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from jfast_sync import context
from jfast_sync.errors import NotInJobError
from jfast_sync.job import Job, RunningJob
from jfast_sync.logs import ContextFilter
from jfast_sync.observers import JobEvent
from jfast_sync.outcome import Policy
from jfast_sync.ports import DeadFilter
from jfast_sync.tasks import Cancel, Retry, Snooze
from tests.waiting import eventually
from tests.worker_harness import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Handlers that wait for it end with the test."""
    event = threading.Event()
    yield event
    event.set()


def dead_errors(bench: Bench) -> list[str | None]:
    return [dead.job.error for dead in bench.queue.dead(DeadFilter(), limit=100)]


def test_jobs_run_and_are_gone(bench: Bench) -> None:
    seen: list[int] = []

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        seen.append(payload["n"])

    bench.enqueue("t", 50)
    worker = bench.drain(threads=4)
    assert sorted(seen) == list(range(50))
    assert (worker.counts.started, worker.counts.done) == (50, 50)
    stats = bench.stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead) == (0, 0, 0, 0)
    assert stats.done_by_task == {"t": 50}


def test_a_failure_is_retried_then_done(bench: Bench) -> None:
    attempts: list[int] = []

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: Job) -> None:
        attempts.append(job.attempts)
        if job.attempts < 3:
            raise ValueError("not yet")

    bench.enqueue("t")
    counts = bench.drain().counts
    assert attempts == [1, 2, 3]
    assert (counts.done, counts.failed, counts.retried, counts.dead) == (1, 2, 2, 0)
    assert bench.stats().failed_by_task == {"t": 2}


def test_the_last_failure_is_a_dead_letter_with_type_text_and_traceback(bench: Bench) -> None:
    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        raise ValueError("broken for good")

    bench.enqueue("t", max_attempts=2)
    counts = bench.drain().counts
    assert (counts.failed, counts.dead) == (2, 1)
    (dead,) = bench.queue.dead(DeadFilter(), limit=10)
    assert dead.job.error == "ValueError: broken for good"
    assert dead.job.attempts == 2
    assert "raise ValueError" in dead.traceback


def test_a_drain_waits_for_its_retries(bench: Bench) -> None:
    bench.policy = Policy(backoff_base=0.3)

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: Job) -> None:
        if job.attempts == 1:
            raise ValueError("again")

    bench.enqueue("t")
    assert bench.drain().counts.done == 1


def test_a_drain_waits_for_what_is_due_soon_and_leaves_what_is_not(bench: Bench) -> None:
    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None: ...

    bench.enqueue("t", delay=timedelta(seconds=0.3))
    bench.enqueue("t", delay=timedelta(hours=1))
    assert bench.drain().counts.done == 1
    assert bench.stats().delayed == 1


def test_a_drain_of_one_queue_ignores_the_others(bench: Bench) -> None:
    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None: ...

    bench.enqueue("t", 3, queue="mine")
    bench.enqueue("t", 2, queue="other")
    assert bench.drain(queues=frozenset({"mine"})).counts.done == 3
    assert bench.stats().ready == 2


def test_only_registered_tasks_are_claimed_where_asked(bench: Bench) -> None:
    @bench.tasks.task("mine", aliases=["old"])
    def handler(payload: dict[str, int]) -> None: ...

    bench.enqueue("mine")
    bench.enqueue("old")
    bench.enqueue("theirs")
    assert bench.drain(claim="registered").counts.done == 2
    assert bench.stats().ready == 1


def test_an_unknown_task_is_a_dead_letter_at_once_naming_the_known(bench: Bench) -> None:
    @bench.tasks.task("invoice.send")
    def handler(payload: dict[str, int]) -> None: ...

    bench.enqueue("invoice.sent")
    assert bench.drain().counts.dead == 1
    (error,) = dead_errors(bench)
    assert error is not None
    assert error.startswith("UnknownTaskError: unknown task 'invoice.sent'")
    assert "invoice.send" in error


def test_retry_cancel_and_snooze_say_how_a_job_goes_on(bench: Bench) -> None:
    starts: dict[str, list[int]] = {"retry": [], "cancel": [], "snooze": []}

    @bench.tasks.task("retry")
    def retry(payload: dict[str, int], job: Job) -> None:
        starts["retry"].append(job.attempts)
        if job.attempts == 1:
            raise Retry("later", delay=0)

    @bench.tasks.task("cancel")
    def cancel(payload: dict[str, int], job: Job) -> None:
        starts["cancel"].append(job.attempts)
        raise Cancel("nobody wants it")

    @bench.tasks.task("snooze")
    def snooze(payload: dict[str, int], job: Job) -> None:
        starts["snooze"].append(job.attempts)
        if len(starts["snooze"]) < 3:
            raise Snooze(0)

    for name in starts:
        bench.enqueue(name)
    bench.drain()
    assert starts == {"retry": [1, 2], "cancel": [1], "snooze": [1, 1, 1]}
    assert dead_errors(bench) == ["Cancel: nobody wants it"]


@pytest.mark.parametrize("exit_", [lambda: sys.exit(3), lambda: (_ for _ in ()).throw(KeyboardInterrupt)])
def test_a_handler_cannot_end_the_worker(bench: Bench, exit_: Any) -> None:
    @bench.tasks.task("leave")
    def leave(payload: dict[str, int]) -> None:
        for _ in exit_():
            pass

    @bench.tasks.task("stay")
    def stay(payload: dict[str, int]) -> None: ...

    bench.enqueue("leave", max_attempts=1)
    bench.enqueue("stay")
    counts = bench.drain(threads=1).counts
    assert (counts.done, counts.dead) == (1, 1)


def test_a_handler_runs_as_who_enqueued_it_and_leaves_nothing_behind(bench: Bench) -> None:
    seen: list[tuple[str | None, str | None, str]] = []
    after: list[Any] = []

    @bench.tasks.task("as")
    def handler(payload: dict[str, int]) -> None:
        seen.append((context.current_tenant_id(), context.current_request_id(), context.current_job().id))
        context._origin.set(context.Origin(tenant_id="leaked"))

    @bench.tasks.task("bare")
    def bare(payload: dict[str, int]) -> None:
        after.append((context.current_tenant_id(), context.current_request_id()))

    (job_id,) = bench.enqueue("as", tenant_id="acme", request_id="r-1")
    bench.drain(threads=1)
    bench.enqueue("bare", tenant_id=None, request_id=None)
    bench.drain(threads=1)
    assert seen == [("acme", "r-1", job_id)]
    assert after == [(None, None)]
    with pytest.raises(NotInJobError):
        context.current_job()


def test_a_job_enqueued_by_a_handler_inherits_its_origin(bench: Bench) -> None:
    seen: list[str | None] = []

    @bench.tasks.task("parent")
    def parent(payload: dict[str, int]) -> None:
        bench.enqueue("child")

    @bench.tasks.task("child")
    def child(payload: dict[str, int]) -> None:
        seen.append(context.current_tenant_id())

    bench.enqueue("parent", tenant_id="acme")
    bench.drain()
    assert seen == ["acme"]


def test_observers_are_told_and_one_that_raises_disturbs_nobody(bench: Bench) -> None:
    told: list[tuple[str, str | None]] = []
    moments: tuple[Any, ...] = ("start", "success", "failure", "dead")
    for moment in moments:

        def note(event: JobEvent, moment: str = moment) -> None:
            told.append((moment, event.error))
            raise RuntimeError("observer")

        bench.observers.add(moment, note)

    @bench.tasks.task("good")
    def good(payload: dict[str, int]) -> None: ...

    @bench.tasks.task("bad")
    def bad(payload: dict[str, int]) -> None:
        raise ValueError("no")

    bench.enqueue("good")
    bench.drain()
    bench.enqueue("bad", max_attempts=1)
    bench.drain()
    assert told == [
        ("start", None),
        ("success", None),
        ("start", None),
        ("failure", "ValueError: no"),
        ("dead", "ValueError: no"),
    ]


def test_one_line_is_logged_per_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    @bench.tasks.task("good")
    def good(payload: dict[str, int]) -> None: ...

    (job_id,) = bench.enqueue("good")
    with caplog.at_level(logging.INFO, logger="jfast_sync.worker"):
        bench.drain()
    (line,) = [record.getMessage() for record in caplog.records if job_id in record.getMessage()]
    assert line.startswith(f"good {job_id} done in ")


def test_max_jobs_is_exact(bench: Bench) -> None:
    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None: ...

    bench.enqueue("t", 20)
    worker = bench.worker(threads=8, max_jobs=5)
    assert worker.run() == 0
    assert worker.counts.started == worker.counts.done == 5
    left = bench.queue.jobs(state="ready")
    assert [row.job.attempts for row in left] == [0] * 15


def test_a_stop_lets_running_jobs_finish_and_starts_no_other(bench: Bench, gate: threading.Event) -> None:
    running = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        running.set()
        gate.wait(10)

    bench.enqueue("t", 3)
    worker = bench.worker(threads=1)
    worker.start()
    running.wait(10)
    worker.stop()
    eventually(lambda: worker.health().meta["state"], until=lambda state: state == "stopping")
    gate.set()
    assert worker.join(10)
    assert worker.exit_code == 0
    assert worker.counts.done == 1
    assert [row.job.attempts for row in bench.queue.jobs(state="ready")] == [0, 0]


def test_what_outlasts_the_grace_is_released_refunded_and_can_do_nothing_more(
    bench: Bench, gate: threading.Event
) -> None:
    running, returned = threading.Event(), threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        running.set()
        gate.wait(30)
        returned.set()

    (job_id,) = bench.enqueue("t")
    worker = bench.worker(grace=0.0)
    worker.start()
    running.wait(10)
    worker.stop()
    assert worker.join(10)
    row = bench.queue.find(job_id)
    assert (row.state, row.job.attempts) == ("ready", 0)
    assert worker.abandoned_threads == 1
    gate.set()
    returned.wait(10)
    eventually(lambda: worker.abandoned_threads, until=lambda alive: alive == 0)
    assert bench.queue.find(job_id).state == "ready"
    assert worker.counts.done == 0


def test_a_handler_that_listens_is_released_when_the_grace_is_over(bench: Bench) -> None:
    running = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: RunningJob) -> None:
        running.set()
        job.wait_cancelled(30)

    (job_id,) = bench.enqueue("t")
    with bench.running(grace=0.0) as worker:
        running.wait(10)
    row = bench.queue.find(job_id)
    assert (row.state, row.job.attempts) == ("ready", 0)
    assert worker.abandoned_threads == 0
    assert worker.counts.released == 1


def test_a_second_stop_ends_the_grace(bench: Bench) -> None:
    running = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: RunningJob) -> None:
        running.set()
        job.wait_cancelled(60)

    (job_id,) = bench.enqueue("t")
    worker = bench.worker(grace=60.0)
    worker.start()
    running.wait(10)
    worker.stop()
    worker.stop()
    assert worker.join(10)
    assert bench.queue.find(job_id).state == "ready"


def test_a_timeout_tells_the_handler_and_counts_as_a_failure(bench: Bench) -> None:
    @bench.tasks.task("t", timeout=0.05)
    def handler(payload: dict[str, int], job: RunningJob) -> None:
        assert job.wait_cancelled(30)

    bench.enqueue("t", max_attempts=2)
    counts = bench.drain(patience=10.0).counts
    assert (counts.failed, counts.dead, counts.abandoned) == (2, 1, 0)
    assert dead_errors(bench) == ["TimeoutError: ran longer than 0.05 s"]


def test_a_thread_that_ignores_its_timeout_is_replaced_and_loses_its_rights(
    bench: Bench, gate: threading.Event
) -> None:
    returned = threading.Event()
    ran: list[str] = []

    @bench.tasks.task("deaf", timeout=0.05)
    def deaf(payload: dict[str, int]) -> None:
        gate.wait(30)
        returned.set()

    @bench.tasks.task("next")
    def following(payload: dict[str, int]) -> None:
        ran.append(threading.current_thread().name)

    bench.enqueue("deaf", max_attempts=1)
    with bench.running(threads=1, max_abandoned=5) as worker:
        bench.when(dead=1)
        bench.enqueue("next")
        bench.when(ready=0, running=0)
        assert ran == ["jfast-runner-2"]
        assert worker.abandoned_threads == 1
        assert "1 threads do not react" in worker.health().detail
        gate.set()
        returned.wait(10)
        eventually(lambda: worker.abandoned_threads, until=lambda alive: alive == 0)
        bench.enqueue("next")
        bench.when(ready=0, running=0)
        assert ran == ["jfast-runner-2", "jfast-runner-2"]
    assert worker.counts.done == 2
    assert bench.stats().dead == 1


def test_a_given_up_attempt_ends_with_its_line_like_any_other(
    bench: Bench, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.tasks.task("deaf", timeout=0.02)
    def deaf(payload: dict[str, int]) -> None:
        gate.wait(30)

    def broken(event: JobEvent) -> None:
        raise ZeroDivisionError

    bench.observers.add("dead", broken)
    caplog.set_level("INFO", "jfast_sync")
    with_context = ContextFilter()
    caplog.handler.addFilter(with_context)
    try:
        (job_id,) = bench.enqueue("deaf", max_attempts=1)
        bench.drain(max_abandoned=5)
    finally:
        caplog.handler.removeFilter(with_context)
    told = [record for record in caplog.records if record.name != "jfast_sync.loop" and job_id in record.getMessage()]
    assert any("failed for good" in record.getMessage() for record in told)
    observed = next(record for record in caplog.records if "on_dead observer" in record.getMessage())
    assert {record.job_id for record in [*told, observed]} == {job_id}  # type: ignore[attr-defined]
    gate.set()


def test_too_many_deaf_threads_end_the_worker_with_a_message(
    bench: Bench, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.tasks.task("deaf", timeout=0.02)
    def deaf(payload: dict[str, int]) -> None:
        gate.wait(30)

    bench.enqueue("deaf", 10, max_attempts=1)
    worker = bench.worker(threads=2, grace=0.0)
    assert worker.run() == 1
    assert "3 threads do not react to their timeouts" in caplog.text
    assert worker.abandoned_threads >= 3
    gate.set()
    eventually(lambda: worker.abandoned_threads, until=lambda alive: alive == 0)


def test_a_timeout_interrupts_a_handler_that_asked_for_it(bench: Bench) -> None:
    @bench.tasks.task("spin", timeout=0.05, interrupt=True)
    def spin(payload: dict[str, int]) -> None:
        while True:
            pass

    bench.enqueue("spin", max_attempts=1)
    counts = bench.drain(patience=10.0).counts
    assert (counts.dead, counts.abandoned) == (1, 0)
    assert dead_errors(bench) == ["TimeoutError: ran longer than 0.05 s"]


def test_a_cancelled_job_gets_its_stop_signal(bench: Bench) -> None:
    running = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: RunningJob) -> None:
        running.set()
        assert job.wait_cancelled(30)
        raise InterruptedError("half way")

    (job_id,) = bench.enqueue("t")
    with bench.running(visibility_timeout=0.3):
        running.wait(10)
        bench.queue.cancel(job_id)
        bench.when(dead=1)
    assert dead_errors(bench) == ["Cancelled while running: InterruptedError: half way"]
