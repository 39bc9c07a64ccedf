"""Idempotency keys are typed and exact."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import combinations
from typing import Any
from uuid import UUID

import pytest

from jfast_sync.tasks.keys import typed_key

KEYS: list[tuple[Any, str]] = [
    (1, "int:1"),
    ("1", "str:1"),
    (True, "bool:true"),
    (1.0, "float:1.0"),
    (Decimal(1), "decimal:1"),
    (UUID(int=1), "uuid:00000000-0000-0000-0000-000000000001"),
    (date(2026, 1, 1), "date:2026-01-01"),
    (datetime(2026, 1, 1, tzinfo=UTC), "datetime:2026-01-01T00:00:00+00:00"),
    (0, "int:0"),
    (False, "bool:false"),
    ("int:1", "str:int:1"),
    ((1,), "tuple:(5:int:1)"),
    (("a", "b"), "tuple:(5:str:a,5:str:b)"),
    (("a,5:str:b",), "tuple:(13:str:a,5:str:b)"),
    ((None, ""), "tuple:(5:none:,4:str:)"),
    (((1,), 2), "tuple:(15:tuple:(5:int:1),5:int:2)"),
    ((1, (2,)), "tuple:(5:int:1,15:tuple:(5:int:2))"),
]


@pytest.mark.parametrize(("key", "text"), KEYS)
def test_text(key: Any, text: str) -> None:
    assert typed_key(key) == text


def test_all_differ() -> None:
    for (_, one), (_, other) in combinations(KEYS, 2):
        assert one != other


def test_none_is_no_key() -> None:
    assert typed_key(None) is None


@pytest.mark.parametrize("key", ["", (), []])
def test_an_empty_key_is_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="empty key"):
        typed_key(key)


@pytest.mark.parametrize("key", [{}, {"a": 1}, b"x", object(), {1}, ({},), lambda: 1])
def test_other_types_are_refused(key: Any) -> None:
    with pytest.raises(TypeError, match="a key is a string"):
        typed_key(key)


@pytest.mark.parametrize("key", [float("nan"), Decimal("NaN"), (1, float("nan"))])
def test_what_never_equals_itself_is_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="idempotent_on gave"):
        typed_key(key)
