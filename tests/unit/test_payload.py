"""What may be in a payload, how it is encoded, and what a refusal says."""

from __future__ import annotations

import json
import time
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jfast_sync.errors import PayloadError
from jfast_sync.payload import MAX_BYTES, MAX_DEPTH, encode

AN_ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")


class Colour(Enum):
    RED = "red"
    SINCE = date(2026, 1, 31)


class Level(IntEnum):
    HIGH = 3


class Key(StrEnum):
    A = "a"


class Text(str):
    __slots__ = ()


class Real(float):
    pass


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: list[str] = field(default_factory=list)


def refusal(payload: Any, **options: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        encode(payload, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
        (1.5, 1.5),
        ("", ""),
        ("grüße \U0001f600", "grüße \U0001f600"),
        ([], []),
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (datetime(2026, 1, 31, 8, 30, tzinfo=UTC), "2026-01-31T08:30:00+00:00"),
        (datetime(2026, 1, 31, 8, 30, 0, 5, tzinfo=timezone(timedelta(hours=-6))), "2026-01-31T08:30:00.000005-06:00"),
        (date(2026, 1, 31), "2026-01-31"),
        (AN_ID, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        (Decimal("19.90"), "19.90"),
        (Decimal("-0"), "-0"),
        (Colour.RED, "red"),
        (Colour.SINCE, "2026-01-31"),
        (Level.HIGH, 3),
        (Key.A, "a"),
        (Text("x"), "x"),
        (Real(2.5), 2.5),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        (Line("x", Decimal("1.50")), {"sku": "x", "price": "1.50", "tags": []}),
    ],
)
def test_encodes(value: Any, stored: Any) -> None:
    got = encode({"value": value})["value"]
    assert got == stored
    assert type(got) is type(stored)
    assert json.loads(json.dumps({"value": got}, allow_nan=False)) == {"value": stored}


def test_takes_a_dataclass_or_a_mapping_as_the_whole_payload() -> None:
    assert encode(Line("x", Decimal(1))) == {"sku": "x", "price": "1", "tags": []}
    assert encode(MappingProxyType({"a": (1,)})) == {"a": [1]}
    assert encode({}) == {}


def test_gives_a_copy() -> None:
    payload = {"items": [{"a": 1}]}
    stored = encode(payload)
    payload["items"][0]["a"] = 2
    payload["items"].append({})
    assert stored == {"items": [{"a": 1}]}


def test_one_object_twice_is_not_a_circle() -> None:
    shared = {"a": 1}
    assert encode({"x": shared, "y": [shared, shared]}) == {"x": {"a": 1}, "y": [{"a": 1}, {"a": 1}]}


@pytest.mark.parametrize("payload", [None, [], "text", 5, Line, b"x", iter(())])
def test_refuses_what_is_not_an_object(payload: Any) -> None:
    assert "payload must be a JSON object (a dict with string keys)" in refusal(payload)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "nan has no form in JSON"),
        (float("-inf"), "-inf has no form in JSON"),
        (Decimal("NaN"), "NaN has no form in JSON"),
        (Decimal("Infinity"), "Infinity has no form in JSON"),
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001 - naive on purpose
        ("a\x00b", "NUL character at character 1"),
        ("ab\ud800", "half of a surrogate pair (U+D800) at character 2"),
        (b"x", "base64"),
        (bytearray(b"x"), "base64"),
        ({1}, "sorted(...)"),
        (frozenset(), "sorted(...)"),
        (timedelta(1), "total_seconds()"),
        (time_of_day(1), "isoformat()"),
        (1j, "two numbers"),
        (int, "give its name"),
        (Line, "give its name"),
        (object(), "a object has no form in JSON"),
        (lambda: None, "a function has no form in JSON"),
        pytest.param(10**5000, "16,610 bits", id="5,000 digits"),
        pytest.param({10**5000: "x"}, "keys are strings", id="a key of 5,000 digits"),
        (2**64, "65 bits"),
        (-(2**63) - 1, "64 bits"),
        ({1: "x"}, "the key 1 is of type int; keys are strings"),
        ({None: "x"}, "the key None is of type NoneType"),
        ({Level.HIGH: "x"}, "keys are strings"),
        ({Colour.RED: "x"}, "keys are strings"),
    ],
)
def test_refuses_and_names_the_path(value: Any, reason: str) -> None:
    message = refusal({"items": [0, {"price": value}]})
    assert message.startswith("payload.items[1].price: ")
    assert reason in message


def test_names_a_path_as_code_would_write_it() -> None:
    assert refusal({"two words": {"ñ": [{"": {1}}]}}).startswith('payload["two words"]["\\u00f1"][0][""]: ')
    assert len(refusal({"k" * 100_000: {1}})) < 300


@pytest.mark.parametrize("key", ["a\x00", "\udfff"])
def test_refuses_bad_characters_in_keys(key: str) -> None:
    message = refusal({"x": {key: 1}})
    assert message.startswith("payload.x[")
    message.encode()
    assert "\x00" not in message


def test_refuses_keys_that_become_one() -> None:
    class Insensitive(str):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    both = {Insensitive("a"): 1, "a": 2}
    assert len(both) == 2
    assert "two keys become 'a'" in refusal({"x": both})


def test_refuses_circles() -> None:
    circle: dict[str, Any] = {}
    circle["items"] = [circle]
    assert refusal(circle) == "payload.items[0]: the payload contains itself"


def test_refuses_too_many_levels() -> None:
    def nested(levels: int) -> dict[str, Any]:
        value: Any = 1
        for _ in range(levels - 1):
            value = [value]
        return {"x": value}

    assert encode(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    message = refusal(nested(MAX_DEPTH + 1))
    assert "nested more than 200 levels deep" in message
    assert len(message) < 300


def test_a_hundred_thousand_levels_are_refused_at_once() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    start = time.perf_counter()
    message = refusal({"x": value})
    took = time.perf_counter() - start
    while value:  # freeing it in one go would recurse
        value = value.pop()
    assert "levels deep" in message
    assert took < 1


def test_a_nearly_full_stack_is_a_payload_error() -> None:
    value: Any = 1
    for _ in range(150):
        value = [value]

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            assert "nested too deeply for what is left of the Python stack" in refusal({"x": value})

    deep(700)


def test_the_size_is_that_of_compact_utf8_json() -> None:
    payload = {"a": ["ü\u20ac\U0001f600", 1, None, True, 1.5, '"\\\n\x1f'], "ñ": {}}
    size = len(json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode())
    assert encode(payload, max_bytes=size) == payload
    assert refusal(payload, max_bytes=size - 1).startswith(f"payload takes {size} bytes as JSON, where {size - 1} are")


def test_refuses_five_megabytes() -> None:
    message = refusal({"blob": "x" * 5_000_000})
    assert "1,048,576 are allowed" in message
    assert "max_payload_bytes" in message
    assert encode({"blob": "x" * (MAX_BYTES - 11)})


def test_a_payload_that_multiplies_is_refused_at_once() -> None:
    value: Any = "lol"
    for _ in range(60):
        value = [value] * 10
    start = time.perf_counter()
    assert "takes more bytes" in refusal({"x": value})
    assert time.perf_counter() - start < 3


def test_an_endless_mapping_is_refused() -> None:
    class Endless(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return 1

        def __iter__(self) -> Iterator[str]:
            number = 0
            while True:
                yield f"k{number}"
                number += 1

        def __len__(self) -> int:
            return 1

    assert "takes more bytes" in refusal(Endless(), max_bytes=10_000)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_json_comes_back_as_it_went_in_or_is_refused_for_its_nul(payload: dict[str, Any]) -> None:
    if "\\u0000" in json.dumps(payload):
        assert "NUL" in refusal(payload)
    else:
        size = len(json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode())
        assert encode(payload, max_bytes=size) == payload
        refusal(payload, max_bytes=size - 1)
