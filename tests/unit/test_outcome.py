"""How an attempt ends, for everything a handler may raise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from jfast_sync.job import Job, Lease
from jfast_sync.outcome import Bury, Done, Outcome, Policy, Retry, decide
from jfast_sync.tasks import Cancel, Snooze
from jfast_sync.tasks import Retry as AskRetry

NOW = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)


def lease(attempts: int = 1, max_attempts: int | None = 3, **fields: Any) -> Lease:
    return Lease(job=Job(task="x", attempts=attempts, max_attempts=max_attempts), token="t", claimed_at=NOW, **fields)


def retry(outcome: Outcome) -> Retry:
    assert isinstance(outcome, Retry)
    return outcome


def bury(outcome: Outcome) -> Bury:
    assert isinstance(outcome, Bury)
    return outcome


def test_nothing_raised_is_done() -> None:
    assert decide(lease(), None) == Done()


def test_an_exception_is_retried_after_the_backoff() -> None:
    for attempts, delay in [(1, 2), (2, 4)]:
        got = retry(decide(lease(attempts), ValueError("no")))
        assert (got.delay, got.error, got.refund, got.snooze) == (delay, "ValueError: no", False, False)


def test_the_last_attempt_is_buried_with_type_and_text() -> None:
    assert bury(decide(lease(3), ValueError("no"))).error == "ValueError: no"
    assert bury(decide(lease(7), ValueError("no"))).error == "ValueError: no"
    assert bury(decide(lease(1, None), ValueError())).error == "ValueError"


def test_the_traceback_is_kept() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        last, first = bury(decide(lease(3), error)), retry(decide(lease(1), error))
    assert last.traceback is not None
    assert first.traceback is not None
    assert "test_outcome.py" in last.traceback


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_more_than_an_exception_is_a_failure_too(error: BaseException) -> None:
    assert retry(decide(lease(), error)).error is not None


def test_an_unprintable_exception_is_still_decided() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert "Unprintable" in str(retry(decide(lease(), Unprintable())).error)
    assert "\x00" not in str(retry(decide(lease(), ValueError("a\x00\ud800"))).error)


def test_secrets_do_not_reach_the_outcome() -> None:
    assert "s3cret" not in repr(decide(lease(), ValueError("postgresql://me:s3cret@host/db")))


def test_retry_on_and_give_up_on() -> None:
    only = Policy(retry_on=(OSError,))
    assert isinstance(decide(lease(), TimeoutError(), only), Retry)
    assert isinstance(decide(lease(), ValueError(), only), Bury)
    never = Policy(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert isinstance(decide(lease(), FileNotFoundError(), never), Bury)
    assert isinstance(decide(lease(), PermissionError(), never), Retry)


def test_the_policys_backoff() -> None:
    assert retry(decide(lease(2), ValueError(), Policy(backoff_base=5, backoff_cap=7))).delay == 7
    assert retry(decide(lease(2), ValueError(), Policy(backoff=lambda attempt: attempt * 100.0))).delay == 200
    assert 1 <= retry(decide(lease(1), ValueError(), Policy(backoff_jitter=0.5))).delay <= 2


def test_asking_for_a_retry() -> None:
    asked = retry(decide(lease(), AskRetry("busy", delay=timedelta(minutes=1))))
    assert (asked.delay, asked.error, asked.refund) == (60, "Retry: busy", False)
    assert retry(decide(lease(2), AskRetry())).delay == 4
    assert retry(decide(lease(2), AskRetry(delay=0))).delay == 0
    assert retry(decide(lease(), AskRetry(), Policy(retry_on=(OSError,)))).error == "Retry"
    assert retry(decide(lease(), AskRetry(), Policy(give_up_on=(Exception,)))).error == "Retry"
    assert bury(decide(lease(3), AskRetry("busy", delay=1))).error == "Retry: busy"


def test_cancel_is_buried_whatever_is_left() -> None:
    assert decide(lease(1), Cancel("no such invoice")) == Bury("Cancel: no such invoice")
    assert decide(lease(1), Cancel("x"), Policy(retry_on=(Cancel,))) == Bury("Cancel: x")


def test_snooze_spends_no_attempt() -> None:
    for attempts in (1, 3, 50):
        got = retry(decide(lease(attempts), Snooze(90, reason="not ready")))
        assert (got.delay, got.until, got.refund, got.snooze, got.error) == (90, None, True, True, "Snooze: not ready")


def test_snooze_until_is_an_instant_in_utc() -> None:
    until = datetime(2026, 2, 1, 2, 30, tzinfo=timezone(-timedelta(hours=6)))
    got = retry(decide(lease(), Snooze(until=until)))
    assert got.until == until
    assert got.until.utcoffset() == timedelta(0)


def test_snoozing_ends_at_the_longest_age() -> None:
    assert isinstance(decide(lease(snoozed_since=NOW - timedelta(days=6, hours=23)), Snooze(1)), Retry)
    assert bury(decide(lease(snoozed_since=NOW - timedelta(days=7)), Snooze(1))).error.startswith(
        "Snooze: still snoozing after 7 days"
    )
    short = Policy(snooze_max_age=timedelta(hours=1))
    assert isinstance(decide(lease(snoozed_since=NOW - timedelta(hours=1)), Snooze(1), short), Bury)
    assert isinstance(decide(lease(snoozed_since=NOW + timedelta(hours=1)), Snooze(1), short), Retry)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e300, timedelta(seconds=-1), timedelta.max])
def test_delays_that_no_queue_can_keep_are_refused_where_they_are_raised(delay: Any) -> None:
    with pytest.raises(ValueError, match="delay must be from 0"):
        AskRetry(delay=delay)
    with pytest.raises(ValueError, match="delay must be from 0"):
        Snooze(delay)


def test_snooze_takes_one_of_two() -> None:
    with pytest.raises(ValueError, match="either delay or until"):
        Snooze()
    with pytest.raises(ValueError, match="either delay or until"):
        Snooze(1, until=NOW)
    with pytest.raises(ValueError, match="time zone"):
        Snooze(until=datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose
