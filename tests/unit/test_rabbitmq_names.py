"""Names of queues in the broker: exact where they are a contract, and never a wildcard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jfast_sync.queues.rabbitmq.cascade import DEFAULT
from jfast_sync.queues.rabbitmq.names import Names, WorkQueue, band_of, word
from jfast_sync.queues.rabbitmq.topology import Exchange, Queue, Topology

NAMES = Names.of("jfast_jobs")


def test_the_names_are_those_of_the_contract() -> None:
    assert (NAMES.main, NAMES.dead, NAMES.lost) == ("jfast.jobs", "jfast.jobs.dead", "jfast.jobs.lost")
    assert (NAMES.level(0), NAMES.level(24)) == ("jfast.jobs.delay.0", "jfast.jobs.delay.24")
    assert NAMES.work(WorkQueue(1, "default")) == "jfast.jobs"
    assert NAMES.work(WorkQueue(0, "mail")) == "jfast.jobs.queue.mail.high"


@pytest.mark.parametrize(("priority", "band"), [(9, 0), (1, 0), (0, 1), (-1, 2), (-9, 2)])
def test_three_bands(priority: int, band: int) -> None:
    assert band_of(priority) == band


@given(st.text(min_size=1, max_size=128))
def test_a_queue_is_one_word_without_wildcards_and_fits_a_key(queue: str) -> None:
    text = word(queue)
    assert not set(text) & set(".*#")
    key = DEFAULT.key(DEFAULT.longest, NAMES.destination(WorkQueue(1, queue)))
    assert len(key.encode()) <= 255
    assert len(NAMES.work(WorkQueue(0, queue)).encode()) <= 255


@given(st.text(min_size=1, max_size=128), st.text(min_size=1, max_size=128))
def test_two_queues_have_two_words(one: str, two: str) -> None:
    assert (word(one) == word(two)) == (one == two)


def test_every_declaration_is_explicit() -> None:
    for kind in ("quorum", "classic"):
        parts = list(Topology(NAMES, kind).parts())
        queues = [part for part in parts if isinstance(part, Queue)]
        assert all("x-queue-type" in queue.arguments for queue in queues)
        assert {queue.arguments["x-queue-type"] for queue in queues} == {kind, "stream"}
        assert sum(isinstance(part, Exchange) for part in parts) == 27
        assert not any({"x-expires", "x-queue-mode", "x-max-length"} & set(queue.arguments) for queue in queues)


def test_quorum_levels_hand_on_at_least_once_and_never_drop() -> None:
    levels = {
        part.name: part.arguments
        for part in Topology(NAMES).parts()
        if isinstance(part, Queue) and ".delay." in part.name
    }
    assert len(levels) == 25
    for arguments in levels.values():
        assert arguments["x-dead-letter-strategy"] == "at-least-once"
        assert arguments["x-overflow"] == "reject-publish"
        assert arguments["x-delivery-limit"] == 1_000_000
    assert levels["jfast.jobs.delay.3"]["x-message-ttl"] == 800
    assert levels["jfast.jobs.delay.3"]["x-dead-letter-exchange"] == "jfast.jobs.delay.2"
    assert levels["jfast.jobs.delay.0"]["x-dead-letter-exchange"] == "jfast.jobs"
