"""Rows to jobs and back: exact times, bounded texts, and rows that are no jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jfast_sync.errors import PayloadError
from jfast_sync.job import Job, Lease
from jfast_sync.outcome import Bury, Done, Retry, Settlement
from jfast_sync.queues import sql_rows

NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


def row(**changed: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "task": "t",
        "payload": '{"n": 1}',
        "queue": "default",
        "priority": 0,
        "attempts": 1,
        "max_attempts": 3,
        "available_at": sql_rows.micros(NOW),
        "created_at": sql_rows.micros(NOW),
        "request_id": None,
        "tenant_id": None,
        "trace": None,
        "last_error": None,
        "lapses": 0,
        "snoozed_since": None,
        "started_at": sql_rows.micros(NOW),
        "lease_token": "token",
    } | changed


@pytest.mark.parametrize("when", [NOW, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)])
def test_times_survive_to_the_microsecond(when: datetime) -> None:
    assert sql_rows.moment(sql_rows.micros(when)) == when


def test_a_lease_is_what_the_row_says() -> None:
    lease = sql_rows.lease_of(row(lapses=2, snoozed_since=sql_rows.micros(NOW - timedelta(hours=1))))
    assert (lease.token, lease.lapses, lease.claimed_at) == ("token", 2, NOW)
    assert lease.snoozed_since == NOW - timedelta(hours=1)
    assert lease.job == Job(
        task="t", id="x", payload={"n": 1}, attempts=1, max_attempts=3, available_at=NOW, created_at=NOW
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": '{"a":'},
        {"payload": "[1]"},
        {"payload": None},
        {"payload": '{"a": 1' + "0" * 5000 + "}"},
        {"payload": "[" * 100_000},
        {"available_at": float("inf")},
        {"available_at": float("-inf")},
        {"started_at": 10**20},
        {"task": ""},
        {"task": "a\nb"},
        {"priority": 100},
        {"trace": "7"},
    ],
    ids=str,
)
def test_a_row_that_is_no_job_raises_and_is_still_shown(changed: dict[str, Any]) -> None:
    broken = row(**changed)
    with pytest.raises(ValueError):
        sql_rows.lease_of(broken)
    if "started_at" not in changed:
        job, raw = sql_rows.lenient_job_of(broken)
        assert job.id == "x"
        assert raw == str(broken["payload"]).encode()


def test_errors_are_stored_without_what_no_database_takes() -> None:
    lease = Lease(job=Job(task="t", id="x"), token="k", claimed_at=NOW)
    fields = sql_rows.settled_fields(Settlement(lease, Bury("a\0b\ud800c" + "x" * 50_000, "t\0")))
    assert fields["error"].startswith("a\ufffdb?c")
    assert len(fields["error"]) <= 20_000
    assert fields["traceback"] == "t\ufffd"


def test_a_delay_has_bounds() -> None:
    lease = Lease(job=Job(task="t", id="x"), token="k", claimed_at=NOW)
    assert sql_rows.settled_fields(Settlement(lease, Retry(-5.0)))["delay"] == 0.0
    assert sql_rows.settled_fields(Settlement(lease, Retry(1e300)))["delay"] < 1e10
    assert sql_rows.settled_fields(Settlement(lease, Done())) == {"id": "x", "token": "k"}


@pytest.mark.parametrize("value", [float("nan"), object(), "\ud800"], ids=["nan", "object", "half"])
def test_what_is_not_json_is_refused_before_any_statement(value: object) -> None:
    with pytest.raises(PayloadError):
        sql_rows.insertable(Job(task="t", payload={"x": value}))
