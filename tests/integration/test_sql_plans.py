"""What claim and stats cost does not grow with rows they are not about, whatever those rows' priority."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import TextClause, event, text

from jfast_sync.job import Job
from jfast_sync.outcome import Release, Settlement
from jfast_sync.ports import DeadFilter, Selection
from jfast_sync.queues.sql import SqlQueue

from .sql_support import ANY, claim, put

FOREIGN_ROWS = 200_000


def fill(queue: SqlQueue) -> None:
    """Store dead letters, and delayed jobs of a higher priority than any due one."""
    if queue.backend == "postgresql":
        rows, past, future = f"generate_series(1, {FOREIGN_ROWS}) AS g(n)", "now()", "now() + interval '1 day'"
    else:
        rows = (
            f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {FOREIGN_ROWS}) "
            "SELECT n FROM s)"
        )
        past, future = "1700000000000000", "9000000000000000"
    with queue.database.control.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO jfast_jobs (id, task, payload, status, died_at, created_at, available_at) "
                f"SELECT 'dead' || n, 't', '{{}}', 'dead', {past}, {past}, {past} FROM {rows}"
            )
        )
        connection.execute(
            text(
                "INSERT INTO jfast_jobs (id, task, payload, priority, created_at, available_at) "
                f"SELECT 'later' || n, 't', '{{}}', 5, {past}, {future} FROM {rows}"
            )
        )


def plan(queue: SqlQueue, statement: TextClause, **parameters: Any) -> str:
    """What the planner makes of a statement, as the queue's own connections would run it."""
    explain = "EXPLAIN " if queue.backend == "postgresql" else "EXPLAIN QUERY PLAN "
    with queue.database.control.connect() as connection:
        if queue.backend == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        rows = connection.execute(text(explain + statement.text), {"now": 1_800_000_000_000_000, **parameters}).all()
    return "\n".join(str(row[-1]) for row in rows)


def median(action: Callable[[], object], times: int = 40) -> float:
    """The middle duration, in milliseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1000


def look_cost(queue: SqlQueue) -> float:
    """What claiming ten of twenty due jobs costs in milliseconds; they are given back outside the measurement."""
    taken = []
    for _ in range(60):
        started = time.perf_counter()
        leases = claim(queue, 10)
        taken.append(time.perf_counter() - started)
        assert len(leases) == 10
        queue.settle([Settlement(lease, Release()) for lease in leases])
    return statistics.median(taken) * 1000


def quietest(queue: SqlQueue) -> float:
    """The least of several medians: what the work costs when nothing else ran on the machine."""
    return min(look_cost(queue) for _ in range(5))


def without_disk_waits(queue: SqlQueue) -> None:
    """Measure the work, not the disk's answer to each commit, which varies more than what is looked for."""
    option = "SET synchronous_commit = off" if queue.backend == "postgresql" else "PRAGMA synchronous = OFF"

    def connected(connection: Any, _entry: object) -> None:
        connection.execute(option)
        connection.commit()

    event.listen(queue.database.control, "connect", connected)
    queue.database.control.dispose()


CLAIM: dict[str, Any] = {"limit": 10, "visibility": 60.0, "token": "k", "worker": "w", "tasks": ["t"]}


@pytest.mark.timed
def test_claim_and_stats_go_by_their_indexes_and_cost_the_same(queue: SqlQueue) -> None:
    without_disk_waits(queue)
    put(queue, 20)
    look_cost(queue)  # connections, prepared statements
    empty = quietest(queue)
    fill(queue)

    full = quietest(queue)
    # A slack of a fifth of a millisecond, for a machine that does other things meanwhile.
    assert full <= empty * 1.5 + 0.2, f"{full:.3f} ms with {2 * FOREIGN_ROWS} foreign rows, {empty:.3f} ms without"

    started = time.perf_counter()
    stats = queue.stats()
    assert time.perf_counter() - started < 0.5
    assert (stats.ready, stats.delayed, stats.dead) == (20, FOREIGN_ROWS, FOREIGN_ROWS)

    assert_indexed(queue, queue._sql.claim(0, False), "due_idx", **CLAIM)
    queues: dict[str, Any] = {"queues": ["default", "mail"], "queue0": "default", "queue1": "mail"}
    assert_indexed(queue, queue._sql.claim(2, False), "queue_due_idx", **CLAIM, **queues)
    assert_indexed(queue, queue._sql.next_due(0, False), "due_idx")
    assert_indexed(queue, queue._sql.recover, "running_idx", limit=10, error="x", grace=60.0)
    assert_indexed(queue, queue._sql.counts, "dead_idx")
    assert_indexed(queue, queue._sql.counts, "running_idx")
    assert_indexed(queue, queue._sql.dead(""), "dead_idx", limit=10)
    assert_indexed(queue, queue._sql.oldest, "due_idx")

    assert median(lambda: queue.dead(DeadFilter(), limit=50), 5) < 50
    assert median(lambda: queue.claim(10, 0.0, Selection(worker="w", queues=frozenset({"none"})))) < 10


def assert_indexed(queue: SqlQueue, statement: TextClause, index: str, **parameters: Any) -> None:
    found = plan(queue, statement, **parameters)
    assert f"jfast_jobs_{index}" in found, found
    assert "Seq Scan on jfast_jobs" not in found, found
    assert "SCAN jfast_jobs\n" not in found + "\n", found  # SQLite's word for reading all of a table


@pytest.mark.timed
def test_a_claim_is_quick_under_an_old_snapshot(postgres_queue: SqlQueue) -> None:
    """Dead row versions pile up where an old transaction keeps vacuum away; claims must bear it, and it is named."""
    queue = postgres_queue
    with queue.database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.execute(text("SELECT 1 FROM pg_class LIMIT 1"))
        for _ in range(15):
            queue.enqueue([Job(task="t", max_attempts=3) for _ in range(2000)])
            with queue.database.control.begin() as connection:
                connection.execute(text("DELETE FROM jfast_jobs"))
        put(queue, 100)
        started = time.perf_counter()
        for _ in range(100):
            assert len(queue.claim(1, 0.0, ANY)) == 1
        assert time.perf_counter() - started < 2.0
