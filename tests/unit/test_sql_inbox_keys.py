"""The inbox's keys: typed, scoped, bounded, and never two for one or one for two."""

from __future__ import annotations

import uuid

import pytest

from jfast_sync.inbox import stored_key


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


@pytest.mark.parametrize("key", ["", (), []])
def test_an_empty_key_is_refused(key: object) -> None:
    with pytest.raises(ValueError, match="empty"):
        stored_key(key, None)
