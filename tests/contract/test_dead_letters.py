"""Dead letters are listed, found, replayed and thrown away; nothing else is touched by that."""

from __future__ import annotations

from typing import Any

import pytest

from jfast_sync.outcome import Bury, Done, Retry, Settlement
from jfast_sync.ports import DeadFilter, DeadLetters, Settled
from tests.contract.backends import VISIBILITY, Backend, LeaseClock, needs
from tests.contract.steps import bury, claim, ids, meanwhile, put, put_many, seconds, settle, take, take_one

pytestmark = needs(DeadLetters)

ALL = DeadFilter()


def graveyard(queue: Any, count: int) -> list[str]:
    """Bury `count` jobs in one batch."""
    put_many(queue, count)
    leases = take(queue, count)
    assert queue.settle([Settlement(lease, Bury("no")) for lease in leases]) == [Settled.APPLIED] * count
    return ids(leases)


def test_the_newest_comes_first(backend: Backend, queue: Any) -> None:
    buried = []
    for _ in range(4):
        buried.append(bury(queue).id)
        backend.pass_time(10)
    letters = queue.dead(ALL, limit=10)
    assert ids(letters) == buried[::-1]
    deaths = [letter.died_at for letter in letters]
    assert deaths == sorted(deaths, reverse=True)
    assert all(death.utcoffset() == seconds(0) for death in deaths)


def test_no_more_than_the_limit(queue: Any) -> None:
    graveyard(queue, 5)
    assert len(queue.dead(ALL, limit=3)) == 3


@pytest.mark.parametrize("apart", [0, 10], ids=["buried in one batch", "buried one by one"])
def test_pages_hold_every_letter_once(backend: Backend, queue: Any, apart: int) -> None:
    if apart:
        buried = []
        for _ in range(7):
            buried.append(bury(queue).id)
            backend.pass_time(apart)
    else:
        buried = graveyard(queue, 7)
    whole = ids(queue.dead(ALL, limit=100))
    assert sorted(whole) == sorted(buried)
    pages: list[str] = []
    while page := queue.dead(ALL, limit=2, after=pages[-1] if pages else None):
        assert len(page) == 2 or len(pages) == 6
        pages += ids(page)
        assert len(pages) <= 7, "a page came twice"
    assert pages == whole


def test_what_dies_between_two_pages_moves_nothing(backend: Backend, queue: Any) -> None:
    buried = []
    for _ in range(4):
        buried.append(bury(queue).id)
        backend.pass_time(10)
    first = ids(queue.dead(ALL, limit=2))
    bury(queue)
    assert first + ids(queue.dead(ALL, limit=2, after=first[-1])) == buried[::-1]


def test_filters_hold_together(backend: Backend, queue: Any) -> None:
    old = bury(queue, task="a", tenant_id="acme").id
    backend.pass_time(1000)
    new = bury(queue, task="a", tenant_id="acme").id
    other_task = bury(queue, task="b", tenant_id="acme").id
    other_tenant = bury(queue, task="a", tenant_id="initech").id
    none = bury(queue, task="a").id
    since = backend.now() - seconds(500)

    def found(**conditions: Any) -> set[str]:
        return set(ids(queue.dead(DeadFilter(**conditions), limit=100)))

    assert found() == {old, new, other_task, other_tenant, none}
    assert found(task="a") == {old, new, other_tenant, none}
    assert found(tenant_id="acme") == {old, new, other_task}
    assert found(since=since) == {new, other_task, other_tenant, none}
    assert found(task="a", tenant_id="acme") == {old, new}
    assert found(task="a", tenant_id="acme", since=since) == {new}
    assert found(task="c") == set()


def test_a_filter_and_pages_go_together(backend: Backend, queue: Any) -> None:
    wanted = []
    for number in range(6):
        job = bury(queue, task="ab"[number % 2])
        if number % 2:
            wanted.append(job.id)
        backend.pass_time(10)
    where = DeadFilter(task="b")
    first = ids(queue.dead(where, limit=2))
    assert first + ids(queue.dead(where, limit=2, after=first[-1])) == wanted[::-1]


def test_only_dead_letters_are_found(queue: Any) -> None:
    ready = put(queue, queue="ready")
    running = put(queue, queue="running")
    lease = take_one(queue, queues=["running"])
    assert queue.find_dead(ready.id) is None
    assert queue.find_dead(running.id) is None
    assert queue.find_dead("unknown") is None
    assert queue.dead(ALL, limit=10) == []
    settle(queue, lease, Bury("no"))
    assert queue.find_dead(running.id).job.error == "no"


def test_a_letter_without_a_traceback_has_none(queue: Any) -> None:
    job = put(queue)
    settle(queue, take_one(queue), Retry(0, error="ValueError: first", traceback="Traceback of the first"))
    settle(queue, take_one(queue), Bury("Cancel: given up"))
    letter = queue.find_dead(job.id)
    assert (letter.job.error, letter.traceback, letter.job.attempts) == ("Cancel: given up", None, 2)


def test_an_error_is_text_and_nothing_else(queue: Any) -> None:
    text = "KeyError: '%s' % :x {y} \\ \" ☃\nsecond line\ttab"
    job = bury(queue, error=text)
    assert queue.find_dead(job.id).job.error == text


@needs(LeaseClock)
def test_revived_jobs_start_from_scratch(backend: Backend, queue: Any) -> None:
    put(
        queue, task="invoice.send", id="x", payload={"n": [1]}, tenant_id="acme", request_id="req-1",
        trace={"traceparent": "t"}, queue="mail", priority=5, max_attempts=2,
    )  # fmt: skip
    settle(queue, take_one(queue), Retry(0, refund=True, snooze=True))
    assert take_one(queue).snoozed_since is not None
    backend.pass_time(VISIBILITY + 1)
    assert queue.recover() == 1
    settle(queue, take_one(queue), Bury("ValueError: no", "Traceback"))

    assert queue.revive(["x"]) == ["x"]
    assert queue.find_dead("x") is None
    lease = take_one(queue, queues=["mail"])
    job = lease.job
    assert (job.attempts, lease.lapses, lease.alone, job.error, lease.snoozed_since) == (1, 0, False, None, None)
    assert (job.task, job.id, job.payload, job.tenant_id, job.request_id) == (
        "invoice.send", "x", {"n": [1]}, "acme", "req-1",
    )  # fmt: skip
    assert (job.trace, job.queue, job.priority, job.max_attempts) == ({"traceparent": "t"}, "mail", 5, 2)
    assert settle(queue, lease, Done()) is Settled.APPLIED


def test_a_job_can_die_and_be_revived_again_and_again(queue: Any) -> None:
    put(queue, id="x", max_attempts=1)
    for _ in range(3):
        lease = take_one(queue)
        assert lease.job.attempts == 1
        settle(queue, lease, Bury("no"))
        assert queue.revive(["x"]) == ["x"]
    assert queue.stats().dead == 0


def test_revival_ends_a_wait(backend: Backend, queue: Any) -> None:
    job = bury(queue)
    other = backend.open()
    with meanwhile(lambda: claim(other, 1, 30)) as claimed:
        queue.revive([job.id])
        assert ids(claimed.result(20)) == [job.id]


@pytest.mark.parametrize("operation", ["revive", "discard"])
def test_ids_that_are_not_there_are_left_out(queue: Any, operation: str) -> None:
    one, two, kept = bury(queue).id, bury(queue).id, bury(queue).id
    ready, running = put(queue, queue="ready"), put(queue, queue="running")
    lease = take_one(queue, queues=["running"])
    named = [one, "unknown", ready.id, two, running.id, one]
    assert sorted(getattr(queue, operation)(named)) == sorted([one, two])
    assert getattr(queue, operation)([]) == []
    assert ids(queue.dead(ALL, limit=10)) == [kept]
    assert settle(queue, lease, Done()) is Settled.APPLIED
    assert ids(take(queue, 1, queues=["ready"])) == [ready.id]


def test_discarded_letters_are_gone(queue: Any) -> None:
    job = bury(queue)
    assert queue.discard([job.id]) == [job.id]
    assert queue.discard([job.id]) == []
    assert queue.revive([job.id]) == []
    assert queue.find_dead(job.id) is None
    assert queue.stats().dead == 0
    assert claim(queue) == []


def test_revive_where_takes_what_matches(queue: Any) -> None:
    for task, tenant in (("a", "acme"), ("a", "initech"), ("b", "acme")):
        bury(queue, task=task, tenant_id=tenant)
    assert queue.revive_where(DeadFilter(task="a", tenant_id="acme")) == 1
    assert queue.revive_where(DeadFilter(task="c")) == 0
    [lease] = take(queue, 1)
    assert (lease.job.task, lease.job.tenant_id, lease.job.attempts) == ("a", "acme", 1)
    assert queue.revive_where(ALL) == 2
    assert queue.revive_where(ALL) == 0
    assert len(take(queue, 2)) == 2


def test_revive_where_takes_very_many(queue: Any) -> None:
    graveyard(queue, 1500)
    assert queue.revive_where(ALL) == 1500
    assert (queue.stats().dead, queue.stats().ready) == (0, 1500)


def test_a_dead_jobs_token_is_dead_too(queue: Any) -> None:
    put(queue, id="x")
    lease = take_one(queue)
    settle(queue, lease, Bury("no"))
    queue.revive(["x"])
    assert settle(queue, lease, Done()) is Settled.REFUSED
    assert ids(take(queue, 1)) == ["x"]
