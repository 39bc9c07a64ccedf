"""The delay after attempt n."""

from __future__ import annotations

import pytest

from jfast_sync.backoff import backoff


def test_doubles_up_to_the_cap() -> None:
    assert [backoff(n) for n in range(1, 11)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.parametrize("attempt", [1024, 2**31, 10**400])
def test_never_overflows(attempt: int) -> None:
    assert backoff(attempt) == 300


def test_an_attempt_below_one_counts_as_the_first() -> None:
    assert backoff(0) == backoff(-5) == 2


def test_jitter_takes_a_share_off() -> None:
    assert backoff(3, jitter=0.5, rand=lambda: 0.0) == 8
    assert backoff(3, jitter=0.5, rand=lambda: 0.5) == 6
    assert backoff(3, jitter=1.0, rand=lambda: 1.0) == 0
    assert all(4 <= backoff(3, jitter=0.5) <= 8 for _ in range(100))


def test_other_bases_and_caps() -> None:
    assert backoff(1, base=10, cap=5) == 5
    assert backoff(5, base=0) == 0
    assert backoff(3, base=1e300, cap=60) == 60
