"""Any legal payload comes back as it was stored, on every backend; one that cannot be read stops nobody."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jfast_sync.outcome import Done, Retry
from jfast_sync.ports import DeadFilter, DeadLetters, Inspectable, Settled
from tests.contract.backends import Backend, needs
from tests.contract.steps import claim, ids, put, put_many, settle, take, take_one


def _nested(depth: int) -> Any:
    value: Any = "deep"
    for level in range(depth):
        value = {"k": value} if level % 2 else [value]
    return value


PAYLOADS: dict[str, dict[str, Any]] = {
    "empty": {},
    "every type": {"a": None, "b": True, "c": False, "d": 0, "e": 1.5, "f": "", "g": [], "h": {}},
    "odd keys": {"": 1, " ": 2, "a.b": 3, "ключ": 4, "😀": 5, "$ref": 6, "__proto__": 7, "a\nb": 8, "'": 9, '"': 10},
    "unicode": {"x": "naïve ☃ 😀 日本 עברית e\u0301 \u2028 \u2029 \ufeff \u200d \U0010ffff"},
    "control characters": {"x": "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f"},
    "looks like something else": {
        "x": ["%s", "%(a)s", ":a", "{b}", "?", "$1", "\\u0000", "\\", "';--", "null", "</script>"]
    },
    "deep": {"x": _nested(500)},
    "integers": {"x": [0, -1, 2**31, 2**53 + 1, 2**63, -(2**64), 10**300]},
    "floats": {"x": [0.1, -2.5, 1e-7, 1e-300, 3.141592653589793, 123456789.123456789, 5e-324]},
    "long text": {"x": "☃x" * 100_000},
    "wide": {f"key-{n}": [n, str(n)] for n in range(2000)},
    "text that is json": {"x": '{"id": "other", "task": "other"}'},
    "fields of a job": {"id": "other", "task": "other", "payload": {}, "attempts": 99, "queue": "other"},
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_a_payload_comes_back_as_it_was(queue: Any, payload: dict[str, Any]) -> None:
    put(queue, payload=payload)
    lease = take_one(queue)
    assert _typed(lease.job.payload) == _typed(payload)
    settle(queue, lease, Retry(0))
    assert _typed(take_one(queue).job.payload) == _typed(payload)


def _typed(value: Any) -> list[tuple[str, str, Any]]:
    """Every value with its path and type: 1, 1.0 and True are equal, and not the same payload. Not recursive."""
    found, todo = [], [("", value)]
    while todo:
        path, each = todo.pop()
        found.append((path, type(each).__name__, len(each) if isinstance(each, dict | list) else each))
        if isinstance(each, dict):
            todo += [(f"{path}.{key}", inner) for key, inner in sorted(each.items())]
        elif isinstance(each, list):
            todo += [(f"{path}[{number}]", inner) for number, inner in enumerate(each)]
    return found


@pytest.mark.parametrize("number", [1.0, 1e16, 1e22, 1.7976931348623157e308, -0.0])
def test_whole_floats_keep_their_value(queue: Any, number: float) -> None:
    # A store may write 1e22 as an integer and drop the sign of a zero (jsonb does); the value is the same number.
    put(queue, payload={"x": number})
    assert float(take_one(queue).job.payload["x"]) == number


def test_what_cannot_be_json_is_refused_before_anything_is_stored(queue: Any) -> None:
    from tests.contract.steps import a_job

    with pytest.raises(ValueError):
        queue.enqueue([a_job(), a_job(payload={"x": math.nan})])
    assert queue.stats().ready == 0


@needs(DeadLetters)
def test_an_undecodable_job_dies_with_a_reason_and_stops_nobody(backend: Backend, queue: Any) -> None:
    for kind in backend.undecodable:
        backend.put_undecodable(kind)
        backend.pass_time(1)
    good = [job.id for job in put_many(queue, 3)]
    leases = take(queue, 3)
    assert sorted(ids(leases)) == sorted(good)
    for lease in leases:
        assert settle(queue, lease, Done()) is Settled.APPLIED
    assert claim(queue) == []
    newest_first = queue.dead(DeadFilter(), limit=10)
    letters = dict(zip(backend.undecodable, sorted(newest_first, key=lambda letter: letter.job.id), strict=True))
    for kind, letter in letters.items():
        assert letter.job.error, kind
        assert letter.raw is not None and backend.undecodable[kind] in letter.raw, kind
    assert (queue.stats().dead, queue.stats().running) == (len(letters), 0)


@needs(DeadLetters)
def test_many_undecodable_jobs_do_not_hide_a_good_one(backend: Backend, queue: Any) -> None:
    for _ in range(5):
        backend.put_undecodable()
    backend.pass_time(1)
    job = put(queue)
    assert ids(take(queue, 1)) == [job.id]
    assert claim(queue, 1) == []
    assert queue.stats().dead == 5


@needs(DeadLetters, Inspectable)
def test_everything_still_answers_beside_an_undecodable_job(backend: Backend, queue: Any) -> None:
    backend.put_undecodable()
    put(queue, id="good")
    assert queue.find("good").state == "ready"
    assert {row.job.id for row in queue.jobs()} > {"good"}
    assert queue.stats().ready == 2
    take(queue, 1)
    assert claim(queue) == []
    [letter] = queue.dead(DeadFilter(task=None), limit=10)
    assert queue.find_dead(letter.job.id).job.error == letter.job.error
    assert {(row.job.id, row.state) for row in queue.jobs()} == {("good", "running"), (letter.job.id, "dead")}
    assert queue.find(letter.job.id).state == "dead"


@needs(DeadLetters)
def test_a_revived_undecodable_job_dies_again_and_can_be_discarded(backend: Backend, queue: Any) -> None:
    backend.put_undecodable()
    assert claim(queue) == []
    [letter] = queue.dead(DeadFilter(), limit=10)
    assert queue.revive([letter.job.id]) == [letter.job.id]
    assert claim(queue) == []
    [again] = queue.dead(DeadFilter(), limit=10)
    assert again.job.error
    assert queue.discard([again.job.id]) == [again.job.id]
    assert queue.stats().dead == 0
