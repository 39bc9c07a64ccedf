"""What a worker does when the queue, or a part of itself, fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.job import Job, Lease, RunningJob
from jfast_sync.outcome import Done, Policy, Settlement
from jfast_sync.ports import Held, Queue, Selection, Settled, Stats
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.worker.signals import on_stop_signal
from tests.waiting import eventually
from tests.worker_harness import Bench


class Wrapped:
    """A queue in memory, of which a test replaces single methods."""

    backend = "memory"

    def __init__(self, inner: MemoryQueue | None = None) -> None:
        self.inner = inner if inner is not None else MemoryQueue()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def bench() -> Bench:
    return Bench(Wrapped())


@pytest.fixture
def ran(bench: Bench) -> list[int]:
    """What the task `t` was called with."""
    seen: list[int] = []

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        seen.append(payload["n"])

    return seen


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def failing(times: int, error: Callable[[], BaseException], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that raises so many times, then works."""
    left = [times]

    def method(*args: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error()
        return real(*args)

    return method


def test_the_wrapper_is_a_queue() -> None:
    assert isinstance(Wrapped(), Queue)


@pytest.mark.parametrize("method", ["setup", "claim", "settle", "recover", "record"])
@pytest.mark.parametrize("error", [UnavailableError("away"), RuntimeError("a driver's")])
def test_a_blip_of_the_queue_costs_nothing(bench: Bench, ran: list[int], method: str, error: Exception) -> None:
    setattr(bench.queue, method, failing(2, lambda: error, getattr(bench.queue.inner, method)))
    bench.enqueue("t", 5)
    worker = bench.drain()
    assert sorted(ran) == list(range(5))
    assert worker.counts.done == 5
    assert bench.stats().done_by_task == {"t": 5}


def test_health_says_why_nothing_is_claimed_until_the_queue_is_back(bench: Bench, ran: list[int]) -> None:
    away = threading.Event()
    away.set()

    def claim(*args: Any) -> list[Lease]:
        if away.is_set():
            raise UnavailableError("no server at queue:5432")
        return bench.queue.inner.claim(*args)

    bench.queue.claim = claim
    with bench.running() as worker:
        health = eventually(worker.health, until=lambda health: health.status == "degraded")
        assert health.detail == "claiming fails: UnavailableError: no server at queue:5432"
        assert not health.critical
        away.clear()
        eventually(worker.health, until=lambda health: health.status == "ok")
        bench.enqueue("t")
        bench.when(ready=0, running=0)
    assert "stopped" in worker.health().detail


def test_an_outcome_waits_for_a_queue_that_is_away_and_its_lease_is_kept(bench: Bench, ran: list[int]) -> None:
    away, renewed = threading.Event(), threading.Event()
    away.set()

    def settle(settlements: Sequence[Settlement]) -> list[Settled]:
        if away.is_set():
            raise UnavailableError("away")
        return bench.queue.inner.settle(settlements)

    def extend(leases: Sequence[Lease]) -> list[Held]:
        if leases:
            renewed.set()
        return bench.queue.inner.extend(leases)

    bench.queue.settle, bench.queue.extend = settle, extend
    bench.enqueue("t")
    with bench.running(visibility_timeout=0.2) as worker:
        assert renewed.wait(10)
        assert bench.stats().running == 1
        away.clear()
        bench.when(running=0)
    assert worker.counts.done == 1
    assert ran == [0]


def test_a_row_that_is_busy_is_asked_again_by_itself(bench: Bench, ran: list[int]) -> None:
    busy = [3]
    batches: list[int] = []

    def settle(settlements: Sequence[Settlement]) -> list[Settled]:
        batches.append(len(settlements))
        if busy[0]:
            busy[0] -= 1
            return [Settled.BUSY, *bench.queue.inner.settle(settlements[1:])]
        return bench.queue.inner.settle(settlements)

    bench.queue.settle = settle
    bench.enqueue("t", 10)
    assert bench.drain().counts.done == 10


def test_one_outcome_that_cannot_be_written_does_not_hold_up_the_others(bench: Bench) -> None:
    let_it = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None: ...

    (poison,) = bench.enqueue("t", priority=9)

    def settle(settlements: Sequence[Settlement]) -> list[Settled]:
        if not let_it.is_set() and any(one.lease.job.id == poison for one in settlements):
            raise ValueError("cannot be stored")
        return bench.queue.inner.settle(settlements)

    bench.queue.settle = settle
    bench.enqueue("t", 20)
    with bench.running(threads=4) as worker:
        bench.when(running=1, ready=0)
        assert worker.counts.done == 20
        let_it.set()
        bench.when(running=0)
    assert worker.counts.done == 21


def test_a_refused_outcome_is_discarded_and_the_successors_result_stands(
    bench: Bench, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    running = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        running.set()
        gate.wait(10)

    (job_id,) = bench.enqueue("t")
    with bench.running() as worker:
        running.wait(10)
        row = bench.queue.inner.store.rows[job_id]
        row.token = "somebody else's"
        gate.set()
        eventually(lambda: worker.counts.lost, until=lambda lost: lost == 1)
        assert bench.stats().running == 1
    assert worker.counts.done == 0
    assert "was another worker's by the time it ended here" in caplog.text


def test_an_attempt_whose_lease_is_lost_is_told_and_writes_nothing(bench: Bench) -> None:
    running, told = threading.Event(), threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: RunningJob) -> None:
        running.set()
        assert job.wait_cancelled(30)
        told.set()

    (job_id,) = bench.enqueue("t")
    with bench.running(visibility_timeout=0.2, patience=10.0) as worker:
        running.wait(10)
        bench.queue.inner.store.rows[job_id].token = "somebody else's"
        assert told.wait(10)
        eventually(lambda: worker.counts.lost, until=lambda lost: lost == 1)
    assert bench.queue.find(job_id).state == "running"


def test_what_a_claim_brings_after_the_stop_is_released(bench: Bench, ran: list[int], gate: threading.Event) -> None:
    claiming = threading.Event()

    def claim(limit: int, wait: float, selection: Selection) -> list[Lease]:
        leases: list[Lease] = bench.queue.inner.claim(limit, 0.0, selection)
        claiming.set()
        gate.wait(10)
        return leases

    bench.queue.claim = claim
    bench.enqueue("t", 2)
    worker = bench.worker()
    worker.start()
    claiming.wait(10)
    worker.stop()
    eventually(lambda: worker.health().meta["state"], until=lambda state: state == "stopping")
    gate.set()
    assert worker.join(10)
    assert ran == []
    assert [row.job.attempts for row in bench.queue.jobs(state="ready")] == [0, 0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("method", ["claim", "settle", "recover"])
def test_a_dead_thread_of_its_own_stops_the_worker_loudly(
    bench: Bench, ran: list[int], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(bench.queue, method, failing(1, lambda: SystemExit("bug"), getattr(bench.queue.inner, method)))
    bench.enqueue("t")
    worker = bench.worker(grace=0.1)
    assert worker.run() == 1
    assert "thread died: SystemExit: bug" in caplog.text
    assert "the worker stops" in worker.health().detail


def test_a_queue_that_stays_away_does_not_keep_the_worker_from_ending(bench: Bench, ran: list[int]) -> None:
    def settle(settlements: Sequence[Settlement]) -> list[Settled]:
        raise UnavailableError("away")

    bench.queue.settle = settle
    bench.enqueue("t")
    worker = bench.worker(grace=0.0)
    worker.start()
    eventually(lambda: ran, until=lambda ran: ran == [0])
    worker.stop()
    assert worker.join(4)


def test_leases_are_renewed_at_a_third_of_their_life_while_a_job_runs(bench: Bench, gate: threading.Event) -> None:
    renewals: list[int] = []
    enough = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        gate.wait(30)

    def extend(leases: Sequence[Lease]) -> list[Held]:
        renewals.append(len(leases))
        if len(renewals) >= 4:
            enough.set()
        return bench.queue.inner.extend(leases)

    bench.queue = Wrapped(MemoryQueue(visibility_timeout=0.3))
    bench.queue.extend = extend
    bench.enqueue("t")
    with bench.running(visibility_timeout=0.3) as worker:
        assert enough.wait(10)
        gate.set()
        bench.when(running=0)
    assert worker.counts.started == worker.counts.done == 1


def test_jobs_of_a_worker_that_vanished_are_recovered(bench: Bench, ran: list[int]) -> None:
    bench.queue = Wrapped(MemoryQueue(visibility_timeout=0.2))
    bench.enqueue("t")
    bench.queue.claim(1, 0.0, Selection(worker="vanished"))
    with bench.running(visibility_timeout=0.2):
        bench.when(running=0, ready=0)
    assert ran == [0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_a_worker_in_the_main_thread_and_handlers_are_put_back(bench: Bench, number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    running = threading.Event()

    @bench.tasks.task("t")
    def handler(payload: dict[str, int], job: RunningJob) -> None:
        running.set()
        job.wait_cancelled(30)

    def send() -> None:
        running.wait(10)
        os.kill(os.getpid(), number)

    (job_id,) = bench.enqueue("t")
    sender = threading.Thread(target=send)
    sender.start()
    worker = bench.worker(grace=0.0)
    assert worker.run() == 0
    sender.join()
    assert bench.queue.find(job_id).state == "ready"
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_stop_signal(lambda: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_handler_is_installed_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with on_stop_signal(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_job_that_should_run_alone_runs_in_a_child_and_ends_as_the_child_says(bench: Bench) -> None:
    asked: list[Job] = []

    class Child:
        def can_run(self, attempt: Any) -> bool:
            return True

        def run(self, attempt: Any) -> Any:
            asked.append(attempt.lease.job)
            return Done(), False

    @bench.tasks.task("t")
    def handler(payload: dict[str, int]) -> None:
        raise AssertionError("not here")

    bench.queue = Wrapped(MemoryQueue(visibility_timeout=0.01))
    bench.child = Child()
    (job_id,) = bench.enqueue("t", max_attempts=1)
    bench.queue.claim(1, 0.0, Selection(worker="vanished"))
    eventually(bench.queue.recover, until=lambda recovered: recovered == 1)
    bench.queue = Wrapped(MemoryQueue(store=bench.queue.inner.store))
    assert bench.drain().counts.done == 1
    assert [job.id for job in asked] == [job_id]


def test_without_a_child_a_suspected_job_runs_here_and_that_is_said(
    bench: Bench, ran: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    bench.queue = Wrapped(MemoryQueue(visibility_timeout=0.01))
    bench.enqueue("t", max_attempts=1)
    bench.queue.claim(1, 0.0, Selection(worker="vanished"))
    eventually(bench.queue.recover, until=lambda recovered: recovered == 1)
    bench.queue = Wrapped(MemoryQueue(store=bench.queue.inner.store))
    bench.drain()
    assert ran == [0]
    assert "should run alone" in caplog.text


def test_starting_and_stopping_leaves_nothing(bench: Bench, ran: list[int]) -> None:
    bench.enqueue("t", 200)
    done = 0
    for _ in range(20):
        with bench.running(threads=4) as worker:
            pass
        done += worker.counts.done
        assert bench.stats().running == 0
    done += bench.drain().counts.done
    assert done == 200
    assert sorted(ran) == list(range(200))


def test_a_drain_without_a_listing_waits_for_its_near_retries_and_not_for_far_ones() -> None:
    class Counting(Wrapped):
        """It cannot list jobs, so it is no Inspectable."""

        def __getattr__(self, name: str) -> Any:
            if name in ("find", "jobs", "cancel"):
                raise AttributeError(name)
            return super().__getattr__(name)

    bench = Bench(Counting())
    bench.policy = Policy(backoff_base=0.2)

    @bench.tasks.task("near")
    def near(payload: dict[str, int], job: Job) -> None:
        if job.attempts == 1:
            raise ValueError("soon")

    @bench.tasks.task("far", backoff=3600)
    def far(payload: dict[str, int]) -> None:
        raise ValueError("much later")

    bench.enqueue("far")
    bench.enqueue("near")
    counts = bench.drain().counts
    assert (counts.done, counts.failed) == (1, 2)
    assert bench.stats().delayed == 1


def test_a_job_that_moves_between_two_looks_is_not_missed_by_a_drain(bench: Bench, ran: list[int]) -> None:
    """Recovered after the running ones were looked at and before the ready ones: neither look shows it."""
    hidden = [True]

    def stats() -> Stats:
        return Stats() if hidden.pop() else bench.queue.inner.stats()

    def claim(limit: int, wait: float, selection: Selection) -> list[Lease]:
        if not hidden:
            hidden.append(False)
            return bench.queue.inner.claim(limit, wait, selection)
        return []

    bench.queue.stats, bench.queue.claim = stats, claim
    bench.enqueue("t")
    bench.drain()
    assert ran == [0]
