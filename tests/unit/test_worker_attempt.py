"""Who may commit: the thread that runs an attempt, or those that take its rights away."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from jfast_sync.job import Job, Lease
from jfast_sync.outcome import Bury, Done, Policy, Release, Retry
from jfast_sync.tasks.declarations import Declarations
from jfast_sync.tasks.registry import Registry
from jfast_sync.worker import wire
from jfast_sync.worker.attempt import Attempt, Committed, Ended, Interrupt, Lost, Stop, Unknown


class Work:
    def cancel(self) -> None: ...

    def terminate(self) -> None: ...


def make(*, attempts: int = 1, timeout: float = 5.0, interrupt: bool = False) -> Attempt:
    registry = Registry(Declarations())

    @registry.task("t", timeout=timeout, interrupt=interrupt)
    def handler(payload: dict[str, object]) -> None: ...

    lease = Lease(job=Job(task="t", attempts=attempts, max_attempts=3), token="x", claimed_at=datetime.now(UTC))
    return Attempt(lease, registry.find("t"), Policy(), timeout=timeout)


def test_an_attempt_left_alone_may_commit_and_end() -> None:
    attempt = make()
    attempt.call(lambda: None)
    assert attempt.may_commit()
    assert attempt.end()
    assert attempt.verdict(None) == Done()


@pytest.mark.parametrize("stop", [Stop.TIMEOUT, Stop.DRAIN, Stop.LOST])
def test_an_attempt_told_to_stop_may_not_commit(stop: Stop) -> None:
    attempt = make()
    attempt.tell(stop)
    attempt.call(lambda: None)
    assert attempt.running.cancelled
    assert not attempt.may_commit()


def test_a_cancelled_attempt_that_finishes_anyway_is_done() -> None:
    attempt = make()
    attempt.tell(Stop.CANCEL)
    attempt.call(lambda: None)
    assert attempt.may_commit()
    assert attempt.verdict(None) == Done()
    assert attempt.verdict(ValueError("stopped")) == Bury("Cancelled while running: ValueError: stopped")


def test_an_abandoned_attempt_can_neither_commit_nor_report() -> None:
    attempt = make()
    attempt.tell(Stop.DRAIN)
    assert attempt.abandon() == (Release(), None)
    assert not attempt.may_commit()
    assert not attempt.end()
    assert attempt.abandon() is None


def test_a_commit_in_progress_is_not_abandoned_as_if_nothing_had_happened() -> None:
    attempt = make()
    assert attempt.may_commit()
    attempt.tell(Stop.DRAIN)
    assert attempt.abandon() is None
    assert attempt.abandon(in_commit=True) == (Unknown(Release()), None)
    assert not attempt.end()


def test_an_attempt_that_ended_is_not_abandoned() -> None:
    attempt = make()
    assert attempt.end()
    assert attempt.tell(Stop.TIMEOUT) is None
    assert attempt.abandon() is None


@pytest.mark.parametrize(("attempts", "kind"), [(1, Retry), (3, Bury)])
def test_a_timeout_counts_as_a_failure_whatever_the_handler_did(attempts: int, kind: type[Retry | Bury]) -> None:
    attempt = make(attempts=attempts, timeout=2.5)
    attempt.tell(Stop.TIMEOUT)
    for error in (None, ValueError("something else")):
        verdict = attempt.verdict(error)
        assert isinstance(verdict, kind)
        assert verdict.error == "TimeoutError: ran longer than 2.5 s"


def test_the_first_reason_stands_but_a_lost_lease_outweighs_it() -> None:
    attempt = make()
    attempt.tell(Stop.TIMEOUT)
    attempt.tell(Stop.DRAIN)
    assert attempt.stop is Stop.TIMEOUT
    attempt.tell(Stop.LOST)
    assert attempt.verdict(None) == Lost()


def test_what_is_attached_is_handed_to_whoever_tells_first() -> None:
    attempt, work = make(), Work()
    attempt.attach(work)
    assert attempt.tell(Stop.CANCEL) is work
    assert attempt.tell(Stop.TIMEOUT) is None
    assert attempt.work() is work
    attempt.detach()
    assert attempt.work() is None


def test_a_cancelled_attempt_still_times_out() -> None:
    attempt = make()
    attempt.tell(Stop.CANCEL)
    assert attempt.give_up_at == float("inf")
    attempt.tell(Stop.TIMEOUT)
    assert attempt.give_up_at < float("inf")


def test_an_interrupt_strikes_a_handler_that_asked_for_it() -> None:
    attempt = make(interrupt=True)
    inside = threading.Event()
    ended: list[type[BaseException]] = []

    def spin() -> None:
        inside.set()
        while True:
            time.monotonic()

    def run() -> None:
        try:
            attempt.call(spin)
        except BaseException as exc:
            ended.append(type(exc))

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait(10)
    attempt.tell(Stop.TIMEOUT)
    thread.join(10)
    assert ended == [Interrupt]


def test_an_interrupt_never_strikes_outside_the_handler() -> None:
    """Told at the very moment the handler returns, in many rounds: only call() itself may raise."""
    outside: list[BaseException] = []
    for _ in range(100):
        attempt = make(interrupt=True)
        near = threading.Event()

        def run(attempt: Attempt = attempt, near: threading.Event = near) -> None:
            try:
                with suppress(Interrupt):
                    attempt.call(near.set)
                for _ in range(200):
                    attempt.over  # noqa: B018 - bytecodes at which a late exception would strike
            except BaseException as exc:
                outside.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        near.wait(10)
        attempt.tell(Stop.TIMEOUT)
        thread.join(10)
    assert outside == []


@pytest.mark.parametrize(
    "ended",
    [
        Done(),
        Committed(),
        Lost(),
        Release(),
        Bury("ValueError: no", "trace"),
        Retry(2.0, error="x", refund=True),
        Retry(until=datetime(2026, 1, 1, tzinfo=UTC), snooze=True),
        Unknown(Retry(1.0, error="x")),
    ],
)
def test_every_end_survives_the_pipe(ended: Ended) -> None:
    assert wire.ended_from(wire.ended_to(ended)) == ended


def test_what_is_not_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="not the end of an attempt"):
        wire.ended_from({"kind": "Exit"})


def test_a_lease_survives_the_pipe() -> None:
    lease = Lease(
        job=Job(task="t", payload={"a": [1, "é"]}, tenant_id="acme", attempts=2, max_attempts=3),
        token="abc",
        claimed_at=datetime(2026, 1, 1, tzinfo=UTC),
        lapses=2,
        snoozed_since=datetime(2025, 12, 31, tzinfo=UTC),
    )
    assert wire.lease_from(wire.lease_to(lease)) == lease
