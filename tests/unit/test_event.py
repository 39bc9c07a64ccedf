"""The event: what it is made of, its JSON, and the ids of its subscribers' jobs."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from jfast_sync import context
from jfast_sync.errors import PayloadError
from jfast_sync.event import Event, subscriber_job_id

KEYS = ["id", "type", "source", "occurred_at", "request_id", "tenant_id", "trace", "key", "data"]


def test_the_json_has_its_keys_in_order():
    event = Event(type="receipt.registered", data={"id": 7}, key="order-7")

    assert list(json.loads(event.to_wire())) == KEYS


def test_an_event_comes_back_as_it_was_sent():
    sent = Event(
        type="receipt.registered",
        data={"id": 7},
        source="shop",
        request_id="r-1",
        tenant_id="t-1",
        trace={"traceparent": "00-1-2-01"},
        key="k",
        occurred_at=datetime(2026, 1, 1, 4, tzinfo=timezone(timedelta(hours=1))),
    )

    assert Event.from_wire(sent.to_wire()) == dataclasses.replace(sent, occurred_at=datetime(2026, 1, 1, 3, tzinfo=UTC))


def test_it_takes_its_origin_from_what_runs():
    origin = context.Origin(tenant_id="t-1", request_id="r-1", trace={"traceparent": "00-1-2-01"})
    with context.bind(origin):
        event = Event(type="x")

    assert event.origin == origin
    assert Event(type="x").origin == context.Origin()


def test_a_rebuilt_event_takes_nothing_from_what_runs():
    with context.bind(context.Origin(tenant_id="other", request_id="other")):
        event = Event.from_dict({"id": "a", "type": "x"})

    assert event.origin == context.Origin()


def test_the_job_id_of_a_subscriber():
    assert subscriber_job_id("a" * 32, "receipt.registered->alert.check_budget") == "752aeb1b0ee74fe725251674e572bf11"


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Event(type="x").type = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": ""}, "type"),
        ({"type": "x" * 201}, "200"),
        ({"type": "x\n"}, "cannot be printed"),
        ({"type": "x", "id": ""}, "id"),
        ({"type": "x", "key": ""}, "key"),
        ({"type": "x", "key": 7}, "key"),
        ({"type": "x", "occurred_at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"type": "x", "occurred_at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14)))}, "in UTC"),
        ({"type": "x", "trace": {"a": 1}}, "trace"),
        ({"type": "x", "trace": None}, "trace"),
        ({"type": "x", "trace": {"a": "\udfff"}}, "an event's trace holds NUL or half"),
        ({"type": "x", "trace": {"a": "x" * 20_000}}, "an event's trace may have up to"),
    ],
)
def test_what_it_refuses(fields, said):
    with pytest.raises(PayloadError, match=said):
        Event(**fields)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"id": "a"}', b'{"type": "x"}', b'{"id": 7, "type": "x"}', b"\xff"]
)
def test_a_body_that_is_no_event(body):
    with pytest.raises(PayloadError, match="not an event"):
        Event.from_wire(body)


def test_unknown_keys_are_ignored():
    assert Event.from_dict({"id": "a", "type": "x", "new": 1}).id == "a"
