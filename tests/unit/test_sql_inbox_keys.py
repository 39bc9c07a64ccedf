"""The inbox's keys: typed, scoped, bounded, and never two for one or one for two."""

from __future__ import annotations

import uuid
from datetime import date

import pytest

from jfast_sync.inbox import stored_key
from jfast_sync.tasks.keys import typed_key


def test_keys_are_typed_and_scoped() -> None:
    keys = [1, "1", True, 1.0, ("1",), uuid.UUID(int=1)]
    stored = {stored_key(key, tenant) for key in keys for tenant in (None, "a", "b")}
    assert len(stored) == len(keys) * 3


def test_a_text_of_nobody_is_stored_as_it_is() -> None:
    assert stored_key("a" * 32, None) == "a" * 32  # as the asynchronous sibling stores an event's id


@pytest.mark.parametrize("key", ["x" * 129, "x" * 10_000, "a\0b"])
def test_what_does_not_fit_is_hashed(key: str) -> None:
    assert len(stored_key(key, None)) <= 128
    assert "\0" not in stored_key(key, None)
    assert stored_key(key, None) != stored_key(key + "y", None)
    assert len(stored_key(key, "t" * 255)) <= 128


def test_no_text_can_be_taken_for_another_tenants_key() -> None:
    theirs = stored_key("invoice", "acme")
    assert stored_key(theirs, None) != theirs
    assert stored_key(stored_key("x" * 500, None), None) != stored_key("x" * 500, None)
    assert stored_key("b:c", "a") != stored_key("c", "a:b")
    assert stored_key(stored_key(1, None), None) != stored_key(1, None)


def test_no_text_can_be_taken_for_a_key_of_another_type() -> None:
    """However long they are, and whatever of them had to be hashed."""
    typed = [1, True, 1.0, uuid.UUID(int=1), (1, 2), ("x" * 200,), tuple(range(60)), date(2026, 1, 1)]
    for tenant in (None, "acme", "t" * 200):
        for key in typed:
            text = "@:" + str(typed_key(key))
            twins = [text, f"@:str:{text}", stored_key(key, tenant), stored_key(text, tenant)]
            assert len({stored_key(each, tenant) for each in (key, *twins)}) == len({key, *twins})
        long = "x" * 200
        assert stored_key(long, tenant) != stored_key(f"@{len(tenant or '')}:{tenant}:{long}", None)
    assert stored_key("q", "") != stored_key("q", None)


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "x" * 200 + "\ud800", ("\ud800",)])
def test_half_a_surrogate_pair_is_a_key_like_another(key: object) -> None:
    for tenant in (None, "acme"):
        stored_key(key, tenant).encode()
    assert stored_key("\ud800", None) != stored_key("\ud801", None)


@pytest.mark.parametrize("key", ["", (), []])
def test_an_empty_key_is_refused(key: object) -> None:
    with pytest.raises(ValueError, match="empty"):
        stored_key(key, None)
