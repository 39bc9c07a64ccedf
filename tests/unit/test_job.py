"""Jobs: ids, bounds, and the wire form shared with the asynchronous sibling."""

from __future__ import annotations

import copy
import json
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from jfast_sync import context
from jfast_sync.errors import PayloadError
from jfast_sync.job import Job, Lease, RunningJob, new_id

NOW = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)


def test_ids_are_version_7_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(1000)]
    assert all(
        len(made) == 32 and uuid.UUID(made).version == 7 and uuid.UUID(made).variant == uuid.RFC_4122 for made in ids
    )
    assert len(set(ids)) == 1000
    moments = [made[:12] for made in ids]
    assert moments == sorted(moments)


def test_ids_of_many_threads_differ() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend([new_id() for _ in range(500)])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4000


def test_defaults() -> None:
    job = Job(task="x")
    assert (job.payload, job.queue, job.priority, job.attempts, job.max_attempts) == ({}, "default", 0, 0, None)
    assert Job(task="x").id != job.id
    assert Job(task="x").payload is not job.payload


def test_the_origin_is_taken_from_context_unless_given() -> None:
    with context.bind(context.Origin(tenant_id="a", request_id="r", trace={"traceparent": "t"})):
        inherited, given = Job(task="x"), Job(task="x", tenant_id=None, request_id="mine", trace=None)
    assert inherited.origin == context.Origin(tenant_id="a", request_id="r", trace={"traceparent": "t"})
    assert given.origin == context.Origin(request_id="mine")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task": ""}, "task must be a non-empty string"),
        ({"task": None}, "task must be a non-empty string"),
        ({"task": "x" * 256}, "task may have up to 255 characters, got 256"),
        ({"task": "a\nb"}, "cannot be printed"),
        ({"id": ""}, "id must be a non-empty string"),
        ({"id": "x" * 129}, "id may have up to 128 characters"),
        ({"id": "\ud800"}, "cannot be printed"),
        ({"id": 5}, "id must be a non-empty string, got 5"),
        ({"queue": "q" * 129}, "queue may have up to 128"),
        ({"tenant_id": ""}, "tenant_id must be a non-empty string"),
        ({"tenant_id": "t" * 256}, "tenant_id may have up to 255"),
        ({"request_id": "r\x1b"}, "request_id holds a character that cannot be printed"),
        ({"priority": 10}, "priority must be a whole number from -9 to 9, got 10"),
        ({"priority": True}, "priority must be a whole number"),
        ({"priority": 1.0}, "priority must be a whole number"),
        pytest.param({"priority": 10**5000}, "priority must be a whole number", id="5,000 digits"),
        ({"attempts": -1}, "attempts must be a whole number from 0"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": 2**31}, "max_attempts must be a whole number from 1"),
        ({"available_at": datetime(2026, 1, 1)}, "available_at must carry a time zone"),  # noqa: DTZ001 - naive on purpose
        ({"available_at": "2026-01-01"}, "available_at must be a datetime"),
        (
            {"available_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=6)))},
            "outside of what a datetime can hold",
        ),
        ({"created_at": 5}, "created_at must be a datetime"),
        ({"delay": timedelta(seconds=-1)}, "delay must be from 0 to 3,660 days"),
        ({"delay": timedelta.max}, "delay must be from 0 to 3,660 days"),
        ({"delay": 5}, "delay must be a timedelta, got 5"),
        ({"delay": timedelta(1), "available_at": NOW}, "delay or available_at, not both"),
        ({"trace": "x"}, "trace must be a mapping of texts"),
        ({"trace": {"a": 1}}, "trace must be a mapping of texts"),
        ({"trace": {"traceparent": "a\0"}}, "trace holds NUL or half of a surrogate pair"),
        ({"trace": {"\ud800": "a"}}, "trace holds NUL or half of a surrogate pair"),
        ({"trace": {"baggage": "a" * 16_384}}, "trace may have up to 16,384 characters, got 16,391"),
    ],
)
def test_refuses(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        Job(**{"task": "x", **fields})
    assert reason in str(caught.value)


FULL = Job(
    id="mine",
    task="invoice.send",
    payload={"id": 7, "to": "grüße"},
    queue="slow",
    priority=-3,
    attempts=2,
    max_attempts=5,
    available_at=NOW,
    created_at=NOW,
    request_id="r1",
    tenant_id="acme",
    trace={"traceparent": "t"},
    error="ValueError: no",
)


def test_the_wire_form_is_the_siblings_and_then_ours() -> None:
    assert FULL.to_wire().decode() == (
        '{"id":"mine","task":"invoice.send","payload":{"id":7,"to":"grüße"},"attempts":2,"max_attempts":5,'
        '"request_id":"r1","tenant_id":"acme","trace":{"traceparent":"t"},"error":"ValueError: no","queue":"slow",'
        '"priority":-3,"available_at":"2026-01-31T08:30:00+00:00","created_at":"2026-01-31T08:30:00+00:00"}'
    )


def test_the_wire_form_comes_back() -> None:
    assert Job.from_wire(FULL.to_wire()) == FULL
    assert Job.from_wire(FULL.to_wire().decode()) == FULL
    plain = Job(task="x", id="a")
    assert Job.from_wire(plain.to_wire()) == plain


def test_only_id_and_task_are_mandatory_and_the_rest_is_ignored_or_defaulted() -> None:
    with context.bind(context.Origin(tenant_id="the reader's", request_id="the reader's")):
        job = Job.from_wire('{"id":"a","task":"x","newer":{"y":1},"payload":null,"queue":null}')
    assert job == Job(id="a", task="x", tenant_id=None, request_id=None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        "nonsense",
        "[]",
        "5",
        '"x"',
        '{"id":"a"}',
        '{"task":"x"}',
        '{"id":null,"task":"x"}',
        '{"id":"a","task":null}',
        '{"id":"","task":"x"}',
        '{"id":5,"task":"x"}',
        '{"id":"a","task":"x","payload":[]}',
        '{"id":"a","task":"x","payload":"{}"}',
        '{"id":"a","task":"x","attempts":"3"}',
        '{"id":"a","task":"x","attempts":-1}',
        '{"id":"a","task":"x","priority":99}',
        '{"id":"a","task":"x","trace":"t"}',
        '{"id":"a","task":"x","trace":[]}',
        '{"id":"a","task":"x","tenant_id":5}',
        '{"id":"a","task":"x","available_at":"soon"}',
        '{"id":"a","task":"x","available_at":5}',
        '{"id":"a","task":"x","available_at":"2026-01-01T00:00:00"}',
        '{"id":"a","task":"x","available_at":"0001-01-01T00:00:00+14:00"}',
        pytest.param('{"id":"a","task":"x","attempts":' + "9" * 5000 + "}", id="5,000 digits"),
        pytest.param("[" * 100_000, id="100,000 levels"),
        pytest.param(
            '{"id":"a","task":"x","payload":' + '{"a":' * 100_000 + "1" + "}" * 100_001, id="100,000 levels in it"
        ),
    ],
)
def test_a_foreign_body_is_a_payload_error(body: bytes | str) -> None:
    with pytest.raises(PayloadError, match=r"^not a job: "):
        Job.from_wire(body)


def lease(job: Job, **fields: Any) -> Lease:
    return Lease(job=job, token="t", claimed_at=NOW, **fields)


def test_the_last_start_after_a_lapse_is_alone() -> None:
    assert not lease(replace(FULL, attempts=5)).alone
    assert not lease(replace(FULL, attempts=4), lapses=1).alone
    assert lease(replace(FULL, attempts=5), lapses=1).alone
    assert lease(Job(task="x", attempts=1), lapses=1).alone


def test_a_running_job_shows_the_jobs_fields_and_whether_to_stop() -> None:
    told = threading.Event()
    running = RunningJob(FULL, told)
    assert (running.id, running.tenant_id, running.payload) == ("mine", "acme", FULL.payload)
    assert not running.cancelled
    assert not running.wait_cancelled(0)
    told.set()
    assert running.cancelled
    assert running.wait_cancelled(60)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = running.nonsense


def test_a_running_job_can_be_copied() -> None:
    assert copy.copy(RunningJob(FULL)).id == "mine"


def test_the_wire_form_refuses_what_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Job(task="x", payload={"a": float("nan")}).to_wire()
    assert json.loads(Job(task="x", payload={"a": 1}).to_wire())["payload"] == {"a": 1}
