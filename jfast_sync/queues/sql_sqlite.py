"""The queue's statements on SQLite: one writer at a time, so no row has to be skipped; the clock comes as ``:now``.

Statements that only read begin with SELECT: nothing else runs without the write lock (``sql/sqlite_transactions``).
"""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from sqlalchemy import TextClause, text

from jfast_sync.queues.sql_statements import COLUMNS, PRIORITIES, Statements, waits

__all__ = ["statements"]

_TOKEN: Final = "j.lease_token || '/' || j.attempts"  # as on PostgreSQL
_DEAD_AT: Final = "coalesce(j.died_at, j.created_at)"
_ROW: Final = ", ".join(f"j.{column}" for column in COLUMNS)
_RETURNED: Final = ", ".join(COLUMNS)


def _fields(*names: str) -> str:
    return ", ".join(f"json_extract(value, '$.{name}')" for name in names)


def _given(*columns: str) -> str:
    fields = "".join(f", json_extract(value, '$.{column}') AS {column}" for column in ("id", "token", *columns))
    return f"(SELECT {fields[2:]} FROM json_each(:batch)) AS g"


def _settled(table: str, changes: str, *columns: str, returning: str = "id") -> TextClause:
    return text(
        f"UPDATE {table} AS j SET {changes} FROM {_given(*columns)} "
        f"WHERE j.id = g.id AND {_TOKEN} = g.token AND j.status = 'running' RETURNING {returning}"
    )


def _of_batch(table: str) -> str:
    return (
        f"id IN (SELECT j.id FROM {_given()} CROSS JOIN {table} AS j ON j.id = g.id "
        f"WHERE {_TOKEN} = g.token AND j.status = 'running')"
    )


def _branches(table: str, columns: str, queues: int, by_task: bool) -> str:
    """Each priority (and queue) asked for its own first rows; CROSS JOIN keeps SQLite from turning the loops around."""
    values = ", ".join(f"({priority})" for priority in PRIORITIES)
    task = " AND j.task IN (SELECT value FROM json_each(:tasks))" if by_task else ""

    def branch(queue: str, index: str) -> str:
        return (
            f"SELECT {columns} FROM (WITH p(priority) AS (VALUES {values}) SELECT priority FROM p) AS p "
            f"CROSS JOIN {table} AS j INDEXED BY {table}_{index} WHERE j.status = 'pending' "
            f"AND j.priority = p.priority AND j.available_at <= :now{queue}{task} LIMIT :limit"
        )

    if not queues:
        return branch("", "due_idx")
    each = (f"SELECT * FROM ({branch(f' AND j.queue = :queue{n}', 'queue_due_idx')})" for n in range(queues))
    return " UNION ALL ".join(each)


@cache
def _claim(table: str, queues: int, by_task: bool) -> TextClause:
    columns = "j.id AS id, j.priority AS priority, j.available_at AS due"
    found = _branches(table, columns, queues, by_task)
    order = " ORDER BY priority DESC, due LIMIT :limit" if queues else ""
    return text(
        f"UPDATE {table} SET status = 'running', attempts = min(attempts, 2147483646) + 1, "
        "locked_until = :now + CAST(:visibility * 1000000 AS INTEGER), lease_token = :token || '.' || id, "
        "worker = :worker, started_at = :now, cancel_requested = 0 "
        f"WHERE id IN (SELECT id FROM ({found}){order}) RETURNING {_RETURNED}, "
        "lease_token || '/' || attempts AS lease_token"
    )


@cache
def _next_due(table: str, queues: int, by_task: bool) -> TextClause:
    # Not limited to one row in all, but to each priority's first: an aggregate over an index range stops there.
    values = ", ".join(f"({priority})" for priority in PRIORITIES)
    task = " AND j.task IN (SELECT value FROM json_each(:tasks))" if by_task else ""

    def first(queue: str, index: str) -> str:
        return (
            f"(SELECT j.available_at FROM {table} AS j INDEXED BY {table}_{index} WHERE j.status = 'pending' "
            f"AND j.priority = p.priority{queue}{task} ORDER BY j.available_at LIMIT 1)"
        )

    if queues:
        firsts = [first(f" AND j.queue = :queue{n}", "queue_due_idx") for n in range(queues)]
    else:
        firsts = [first("", "due_idx")]
    each = " UNION ALL ".join(f"SELECT {one} AS due FROM p" for one in firsts)
    return text(f"SELECT (min(due) - :now) / 1000000.0 FROM (WITH p(priority) AS (VALUES {values}) {each})")


@cache
def _dead(table: str, where: str) -> TextClause:
    return text(
        f"SELECT {_ROW}, {_DEAD_AT} AS died_at, j.traceback FROM {table} AS j INDEXED BY {table}_dead_idx "
        f"WHERE j.status = 'dead'{where.format(dead_at=_DEAD_AT, since=':since')} "
        f"ORDER BY {_DEAD_AT} DESC, j.id DESC LIMIT :limit"
    )


_INSPECTED: Final = f"{_ROW}, j.status, j.worker, j.died_at, j.finished_at, :now < j.available_at AS delayed"
_STATES: Final = {
    "running": ("j.status = 'running'", "j.locked_until"),
    "ready": ("j.status = 'pending' AND j.available_at <= :now", "j.priority DESC, j.available_at"),
    "delayed": ("j.status = 'pending' AND j.available_at > :now", "j.available_at, j.priority DESC"),
    "dead": ("j.status = 'dead'", f"{_DEAD_AT} DESC, j.id DESC"),
    "done": ("j.status = 'done'", "j.finished_at DESC"),
}


@cache
def _listing(table: str, state: str, where: str) -> TextClause:
    condition, order = _STATES[state]
    return text(f"SELECT {_INSPECTED} FROM {table} AS j WHERE {condition}{where} ORDER BY {order} LIMIT :limit")


@cache
def statements(table: str) -> Statements:
    """Return the statements for one table."""
    freed = "lease_token = NULL, locked_until = NULL, worker = NULL, cancel_requested = 0"
    revived = (
        "status = 'pending', attempts = 0, lapses = 0, available_at = :now, died_at = NULL, "
        "last_error = NULL, traceback = NULL, snoozed_since = NULL, worker = NULL, lease_token = NULL"
    )
    vanished = ":error || coalesce(' (' || worker || ')', '')"
    held = f"j.id = :id AND {_TOKEN} = :token AND j.status = 'running'"
    ids = "(SELECT json_extract(value, '$.id') FROM json_each(:batch))"
    return Statements(
        insert=text(
            f"INSERT INTO {table} (id, task, payload, queue, priority, attempts, max_attempts, "
            "request_id, tenant_id, trace, available_at, created_at) "
            f"SELECT {_fields('id', 'task', 'payload', 'queue', 'priority', 'attempts', 'max_attempts')}, "
            f"{_fields('request_id', 'tenant_id', 'trace')}, "
            f"coalesce({_fields('available_at')}, :now + CAST({_fields('delay')} * 1000000 AS INTEGER)), :now "
            "FROM json_each(:batch) WHERE true ON CONFLICT (id) DO NOTHING RETURNING id"
        ),
        claim=partial(_claim, table),
        next_due=partial(_next_due, table),
        lapsed=text(f"SELECT 1 FROM {table} WHERE status = 'running' AND locked_until < :now LIMIT 1"),
        touch=text(f"SELECT 1 FROM {table} LIMIT 1"),
        recover=text(
            f"UPDATE {table} SET {waits('', ':now', vanished)}, attempts = min(attempts, max(max_attempts - 1, 0)), "
            f"lapses = lapses + 1, {freed} "
            f"WHERE id IN (SELECT id FROM {table} WHERE status = 'running' AND locked_until < :now "
            "ORDER BY locked_until LIMIT :limit) RETURNING id"
        ),
        done=text(f"DELETE FROM {table} WHERE {_of_batch(table)} RETURNING id"),
        keep=_settled(table, "status = 'done', finished_at = :now, locked_until = NULL"),
        retry=_settled(
            table,
            f"{waits('j.', ':now', 'coalesce(g.error, j.last_error)')}, {freed}, "
            "attempts = max(j.attempts - g.refund, 0), "
            "available_at = coalesce(g.until, :now + CAST(g.delay * 1000000 AS INTEGER)), "
            "traceback = coalesce(g.traceback, j.traceback), "
            "snoozed_since = CASE WHEN g.snooze THEN coalesce(j.snoozed_since, j.started_at) ELSE j.snoozed_since END",
            "delay",
            "until",
            "error",
            "traceback",
            "refund",
            "snooze",
        ),
        bury=_settled(
            table,
            f"status = 'dead', {freed}, died_at = :now, last_error = g.error, traceback = g.traceback",
            "error",
            "traceback",
        ),
        release=_settled(table, f"{waits('j.', ':now', 'j.last_error')}, {freed}, attempts = max(j.attempts - 1, 0)"),
        extend=_settled(
            table, "locked_until = :now + CAST(:visibility * 1000000 AS INTEGER)", returning="id, cancel_requested"
        ),
        current=text(
            f"SELECT j.id FROM {_given()} CROSS JOIN {table} AS j ON j.id = g.id "
            f"WHERE {_TOKEN} = g.token AND j.status = 'running'"
        ),
        complete=text(f"DELETE FROM {table} AS j WHERE {held}"),
        complete_keeping=text(
            f"UPDATE {table} AS j SET status = 'done', finished_at = :now, locked_until = NULL WHERE {held}"
        ),
        committed=text(
            f"SELECT 1 FROM {table} AS j WHERE j.id = :id AND NOT (j.status = 'done' AND {_TOKEN} = :token)"
        ),
        prune_done=text(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE status = 'done' "
            "AND finished_at < :now - CAST(:seconds * 1000000 AS INTEGER) ORDER BY finished_at LIMIT :limit)"
        ),
        record=text(
            f"INSERT INTO {table}_counters AS c (task, done, failed) "
            f"SELECT {_fields('task', 'done', 'failed')} FROM json_each(:batch) WHERE true "
            "ON CONFLICT (task) DO UPDATE SET done = c.done + excluded.done, failed = c.failed + excluded.failed"
        ),
        counts=text(
            f"SELECT (SELECT count(*) FROM {table} WHERE status = 'pending' AND available_at <= :now), "
            f"(SELECT count(*) FROM {table} WHERE status = 'pending' AND available_at > :now), "
            f"(SELECT count(*) FROM {table} WHERE status = 'running'), "
            f"(SELECT count(*) FROM {table} WHERE status = 'dead')"
        ),
        counters=text(f"SELECT task, done, failed FROM {table}_counters ORDER BY task"),
        oldest=text(
            f"SELECT max((:now - due) / 1000000.0, 0) FROM (SELECT min(due) AS due FROM ("
            f"{_oldest_per_priority(table)})) WHERE due <= :now"
        ),
        dead=partial(_dead, table),
        revive=text(f"UPDATE {table} SET {revived} WHERE status = 'dead' AND id IN {ids} RETURNING id"),
        discard=text(f"DELETE FROM {table} WHERE status = 'dead' AND id IN {ids} RETURNING id"),
        find=text(f"SELECT {_INSPECTED} FROM {table} AS j WHERE j.id = :id"),
        listing=partial(_listing, table),
        remove=text(f"DELETE FROM {table} WHERE id = :id AND status = 'pending' RETURNING id"),
        tell=text(f"UPDATE {table} SET cancel_requested = 1 WHERE id = :id AND status = 'running' RETURNING id"),
    )


def _oldest_per_priority(table: str) -> str:
    values = ", ".join(f"({priority})" for priority in PRIORITIES)
    return (
        f"WITH p(priority) AS (VALUES {values}) SELECT (SELECT j.available_at FROM {table} AS j "
        "WHERE j.status = 'pending' AND j.priority = p.priority ORDER BY j.available_at LIMIT 1) AS due FROM p"
    )
