"""The cascade is arithmetic: a delay, its bits, its routing key and the way the bindings lead, against each other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jfast_sync.queues.rabbitmq.cascade import DEFAULT, Cascade

cascades = st.builds(Cascade, levels=st.integers(1, 12), tick_ms=st.integers(1, 1000))
delays = st.integers(0, 10**13).map(lambda micros: micros / 1000)


def matches(pattern: str, key: str) -> bool:
    """What a topic exchange does: `*` is one word, `#` any number of them."""
    parts = [
        r"(?:\.?[^.]+)*" if word == "#" else re.escape(word).replace(r"\*", "[^.]+") for word in pattern.split(".")
    ]
    return re.fullmatch(r"\.?".join(parts), key) is not None


def walk(cascade: Cascade, key: str) -> list[int]:
    """Follow the bindings from the entry; exactly one leads on everywhere."""
    visited: list[int] = []
    at = cascade.levels - 1
    while True:
        [jump] = [jump for jump in cascade.jumps() if jump.source == at and matches(jump.pattern, key)]
        if jump.target is None:
            return visited
        visited.append(jump.target)
        if jump.target == 0:
            return visited
        at = jump.target - 1


@given(cascades, delays)
def test_never_early_and_less_than_a_tick_late(cascade: Cascade, delay_ms: float) -> None:
    kept = cascade.ticks(delay_ms) * cascade.tick_ms
    if cascade.is_too_long(delay_ms):
        assert kept == cascade.longest * cascade.tick_ms
    else:
        assert delay_ms <= kept < delay_ms + cascade.tick_ms


@given(cascades, st.data())
def test_a_key_says_its_delay_and_its_destination(cascade: Cascade, data: st.DataObject) -> None:
    ticks = data.draw(st.integers(0, cascade.longest))
    key = cascade.key(ticks, "default.normal")
    assert cascade.delay_of(key) == ticks
    assert key.split(".")[cascade.levels :] == ["default", "normal"]
    assert len(key.split(".")) == cascade.levels + 2


@given(st.integers(1, 8).flatmap(lambda levels: st.tuples(st.just(levels), st.integers(0, (1 << levels) - 1))))
def test_the_bindings_lead_through_the_levels_whose_bit_is_set(case: tuple[int, int]) -> None:
    levels, ticks = case
    cascade = Cascade(levels=levels, tick_ms=10)
    visited = walk(cascade, cascade.key(ticks, "mail.high"))
    assert visited == cascade.hops(ticks)
    assert sum(cascade.ttl_ms(level) for level in visited) == ticks * 10


@given(st.integers(0, DEFAULT.longest))
def test_a_message_hops_once_per_bit_that_is_set(ticks: int) -> None:
    assert len(DEFAULT.hops(ticks)) == ticks.bit_count()
    assert sum(1 << level for level in DEFAULT.hops(ticks)) == ticks


def test_the_default_reaches_38_days() -> None:
    assert DEFAULT.longest * DEFAULT.tick_ms / 86_400_000 == pytest.approx(38.8, abs=0.1)
    assert not DEFAULT.is_too_long(38 * 86_400_000)
    assert DEFAULT.is_too_long(39 * 86_400_000)


def test_the_default_has_as_many_bindings_as_pairs_of_levels() -> None:
    assert len(list(DEFAULT.jumps())) == 25 * 26 // 2 + 25


@pytest.mark.parametrize(
    ("delay_ms", "ticks"), [(0, 0), (-5, 0), (0.001, 1), (99.9, 1), (100, 1), (100.001, 2), (600_000, 6000)]
)
def test_ticks_are_rounded_up(delay_ms: float, ticks: int) -> None:
    assert DEFAULT.ticks(delay_ms) == ticks


def test_ten_minutes_are_six_thousand_ticks_and_seven_hops() -> None:
    assert len(DEFAULT.hops(6000)) == 7


@pytest.mark.parametrize("ticks", [-1, 1 << 25])
def test_a_delay_outside_of_the_range_has_no_key(ticks: int) -> None:
    with pytest.raises(ValueError, match="ticks must be"):
        DEFAULT.key(ticks, "x.normal")
