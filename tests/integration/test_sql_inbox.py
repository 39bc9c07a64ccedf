"""The inbox: one claim per key and consumer, in the caller's transaction, whatever else runs."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from sqlalchemy import text

from jfast_sync import inbox
from jfast_sync.context import Origin, bind
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql.failures import LockTimeout
from tests.waiting import eventually


def claimed_once(queue: SqlQueue, *keys: object, consumer: str = "c", tenant_id: str | None = None) -> list[bool]:
    with queue.database.session() as session:
        return [inbox.claim_once(session, key, consumer=consumer, tenant_id=tenant_id) for key in keys]


def test_each_key_once_and_none_always(queue: SqlQueue) -> None:
    assert claimed_once(queue, 1, "1", True, 1.0, "x" * 10_000) == [True] * 5
    assert claimed_once(queue, 1, "1", True, 1.0, "x" * 10_000) == [False] * 5
    assert claimed_once(queue, None, None) == [True, True]


def test_consumers_and_tenants_are_apart(queue: SqlQueue) -> None:
    assert claimed_once(queue, "c", consumer="a:b") == [True]
    assert claimed_once(queue, "b:c", consumer="a") == [True]
    assert claimed_once(queue, "c", consumer="a:b", tenant_id="acme") == [True]
    with bind(Origin(tenant_id="acme")), queue.database.session() as session:
        assert inbox.claim_once(session, "c", consumer="a:b") is False
        assert inbox.claimed(session, "c", consumer="a:b") is True
    assert claimed_once(queue, "x", consumer="n" * 255) == [True]
    assert claimed_once(queue, "x", consumer="n" * 255) == [False]


def test_a_text_never_takes_the_claim_of_a_number(queue: SqlQueue) -> None:
    for first in (True, False):
        assert claimed_once(queue, 1, "@:int:1", uuid.UUID(int=1), tenant_id="acme") == [first] * 3
        assert claimed_once(queue, f"@:uuid:{uuid.UUID(int=1)}", (1, 2), "@:tuple:(5:int:1,5:int:2)") == [first] * 3


def test_what_no_database_can_store_is_a_name_like_another(queue: SqlQueue) -> None:
    for first in (True, False):
        assert claimed_once(queue, "\ud800", "\ud801", "a\0", consumer="\ud800") == [first] * 3
        assert claimed_once(queue, "\ud800", consumer="\0", tenant_id="acme") == [first]


@pytest.mark.parametrize(("key", "consumer"), [("", "c"), ("k", "")])
def test_empty_names_are_refused(queue: SqlQueue, key: str, consumer: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        claimed_once(queue, key, consumer=consumer)


def test_a_claim_rolls_back_with_the_work(queue: SqlQueue) -> None:
    with pytest.raises(RuntimeError), queue.database.session() as session:
        assert inbox.claim_once(session, "k", consumer="c", tenant_id=None)
        raise RuntimeError
    assert claimed_once(queue, "k") == [True]


@pytest.mark.parametrize("commits", [True, False])
def test_a_concurrent_duplicate_waits_for_the_outcome(queue: SqlQueue, commits: bool) -> None:
    first = queue.database.attempt()
    assert inbox.claim_once(first.session, "k", consumer="c", tenant_id=None)
    answers: list[bool] = []
    second = threading.Thread(target=lambda: answers.extend(claimed_once(queue, "k")))
    second.start()
    if queue.backend == "postgresql":
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        eventually(lambda: queue.database.transact(lambda c: c.execute(waiting).scalar()), what="the second to wait")
    assert answers == []
    if commits:
        first.commit()
    first.close()
    second.join(10)
    assert answers == [not commits]


def test_waiting_ends_and_the_handlers_own_lock_timeout_stays(postgres_queue: SqlQueue) -> None:
    queue = postgres_queue
    first = queue.database.attempt()
    assert inbox.claim_once(first.session, "k", consumer="c", tenant_id=None)
    assert first.session.execute(text("SHOW lock_timeout")).scalar() == "0"
    started = time.monotonic()
    with pytest.raises(LockTimeout), queue.database.session() as session:
        inbox.claim_once(session, "k", consumer="c", tenant_id=None, wait=0.2)
    assert 0.15 < time.monotonic() - started < 4
    first.close()


def test_pruning_forgets_what_is_old(queue: SqlQueue) -> None:
    claimed_once(queue, *range(2500))
    assert inbox.prune(queue.database, retention_days=1) == 0
    old = "now() - interval '2 days'" if queue.backend == "postgresql" else "processed_at - 172800000000"
    with queue.database.session() as session:
        session.execute(text(f"UPDATE jfast_inbox SET processed_at = {old}"))
        inbox.claim_once(session, "new", consumer="c", tenant_id=None)
    assert inbox.prune(queue.database, retention_days=1) == 2500
    assert claimed_once(queue, "new", 1) == [False, True]
