"""The queue's statements on PostgreSQL. Its own clock decides; a locked row is skipped, never waited for."""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from sqlalchemy import TextClause, text

from jfast_sync.queues.sql_statements import COLUMNS, PRIORITIES, TIMES, Statements, waits

__all__ = ["statements"]

# An uncorrelated subselect is computed once, before the scan; no index takes a bare, volatile clock_timestamp().
_NOW: Final = "(SELECT clock_timestamp())"
# Part of every token: which run of the server the lease was taken from.
_INCARNATION: Final = "(SELECT '@' || extract(epoch FROM pg_postmaster_start_time())::text)"
# The asynchronous sibling claims without a token, so ours stays in the row. Its claim counts a start, so a token names
# the start too; whatever else it does with a job makes it available anew, which is later than our start.
_TOKEN: Final = "j.lease_token || '/' || j.attempts"
_RUNNING: Final = "j.status = 'running' AND j.available_at <= j.started_at"
_DEAD_AT: Final = "coalesce(j.died_at, j.created_at)"
_MICROSECOND: Final = "'1 microsecond'"
_EPOCH: Final = "timestamptz 'epoch'"


def _read(column: str) -> str:
    if column in TIMES:
        # As a double, because an infinite timestamp is one too; exact to the microsecond until the year 2255.
        return f"extract(epoch FROM j.{column})::float8 * 1000000 AS {column}"
    return f"j.{column}::text AS {column}" if column in ("payload", "trace") else f"j.{column}"


_ROW: Final = ", ".join(_read(column) for column in COLUMNS)


def _given(*columns: str) -> str:
    return f"json_to_recordset(CAST(:batch AS json)) AS g(id text, token text{''.join(', ' + c for c in columns)})"


def _held(table: str, lock: str, *columns: str) -> str:
    """The rows of the batch whose token is current and that nobody has locked, locked in the order of their ids."""
    names = "".join(f", g.{column.split()[0]}" for column in columns)
    return (
        f"WITH held AS MATERIALIZED (SELECT j.id{names} FROM {_given(*columns)} JOIN {table} AS j ON j.id = g.id "
        f"WHERE {_TOKEN} = g.token AND {_RUNNING} "
        f"ORDER BY j.id FOR {lock} OF j SKIP LOCKED) "
    )


def _settled(table: str, changes: str, *columns: str) -> TextClause:
    return text(
        f"{_held(table, 'NO KEY UPDATE', *columns)} UPDATE {table} AS j SET {changes} "
        "FROM held WHERE j.id = held.id RETURNING j.id"
    )


def _filter(queues: int, by_task: bool) -> str:
    return (" AND j.queue = q.queue" if queues else "") + (" AND j.task = ANY(:tasks)" if by_task else "")


def _per_priority(inner: str, queues: int) -> str:
    """Ask each priority (and queue) for its own first rows: delayed rows of a higher one are never walked through."""
    values = ", ".join(f"({priority})" for priority in PRIORITIES)
    body = inner
    if queues:
        body = f"SELECT found.* FROM unnest(CAST(:queues AS text[])) AS q(queue), LATERAL ({inner}) AS found"
    return f"(VALUES {values}) AS p(priority), LATERAL ({body}"


@cache
def _claim(table: str, queues: int, by_task: bool) -> TextClause:
    inner = (
        f"SELECT j.id, j.available_at FROM {table} AS j WHERE j.status = 'pending' AND j.priority = p.priority "
        f"AND j.available_at <= {_NOW}{_filter(queues, by_task)} "
        "ORDER BY j.available_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED"
    )
    merged = " ORDER BY found.available_at LIMIT :limit" if queues else ""
    return text(
        f"WITH due AS MATERIALIZED (SELECT d.id FROM {_per_priority(inner, queues)}{merged}) AS d LIMIT :limit) "
        f"UPDATE {table} AS j SET status = 'running', attempts = least(j.attempts, 2147483646) + 1, "
        "locked_until = clock_timestamp() + :visibility * interval '1 second', "
        f"lease_token = CAST(:token AS text) || '.' || j.id || {_INCARNATION}, "
        "worker = :worker, started_at = clock_timestamp(), cancel_requested = false "
        f"FROM due WHERE j.id = due.id RETURNING {_ROW}, {_TOKEN} AS lease_token"
    )


@cache
def _next_due(table: str, queues: int, by_task: bool) -> TextClause:
    inner = (
        f"SELECT j.available_at FROM {table} AS j WHERE j.status = 'pending' AND j.priority = p.priority "
        f"AND j.available_at > (SELECT clock_timestamp() - interval '20 milliseconds'){_filter(queues, by_task)} "
        "ORDER BY j.available_at LIMIT 1"
    )
    return text(
        "SELECT extract(epoch FROM min(d.available_at) - clock_timestamp())::float8 "
        f"FROM {_per_priority(inner, queues)}) AS d WHERE d.available_at < 'infinity'"
    )


@cache
def _dead(table: str, where: str) -> TextClause:
    conditions = where.format(dead_at=_DEAD_AT, since=f"{_EPOCH} + :since * interval {_MICROSECOND}")
    return text(
        f"SELECT {_ROW}, extract(epoch FROM {_DEAD_AT})::float8 * 1000000 AS died_at, j.traceback FROM {table} AS j "
        f"WHERE j.status = 'dead'{conditions} "
        f"ORDER BY {_DEAD_AT} DESC, j.id DESC LIMIT :limit"
    )


_INSPECTED: Final = (
    f"{_ROW}, j.status, j.worker, {_read('died_at')}, {_read('finished_at')}, "
    "clock_timestamp() < j.available_at AS delayed"
)
_STATES: Final = {
    "running": ("j.status = 'running'", "j.locked_until"),
    "ready": (f"j.status = 'pending' AND j.available_at <= {_NOW}", "j.priority DESC, j.available_at"),
    "delayed": (f"j.status = 'pending' AND j.available_at > {_NOW}", "j.available_at, j.priority DESC"),
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
    freed = "lease_token = NULL, locked_until = NULL, worker = NULL, cancel_requested = false"
    revived = (
        "status = 'pending', attempts = 0, lapses = 0, available_at = clock_timestamp(), died_at = NULL, "
        "last_error = NULL, traceback = NULL, snoozed_since = NULL, worker = NULL, lease_token = NULL"
    )
    vanished = "CAST(:error AS text) || coalesce(' (' || j.worker || ')', '')"
    held = f"j.id = :id AND {_TOKEN} = :token AND {_RUNNING}"
    ids = "(SELECT g.id FROM json_to_recordset(CAST(:batch AS json)) AS g(id text))"
    return Statements(
        insert=text(
            f"INSERT INTO {table} (id, task, payload, queue, priority, attempts, max_attempts, "
            "available_at, created_at, request_id, tenant_id, trace) "
            "SELECT g.id, g.task, CAST(g.payload AS jsonb), g.queue, g.priority, g.attempts, g.max_attempts, "
            f"coalesce({_EPOCH} + g.available_at * interval {_MICROSECOND}, c.at + g.delay * interval '1 second'), "
            "c.at, g.request_id, g.tenant_id, CAST(g.trace AS jsonb) "
            # The clock of now, not of when the caller's transaction began, and read once.
            "FROM (SELECT clock_timestamp() AS at OFFSET 0) AS c "
            "CROSS JOIN json_to_recordset(CAST(:batch AS json)) AS g(id text, task text, payload text, queue text, "
            "priority smallint, attempts integer, max_attempts integer, available_at float8, delay float8, "
            "request_id text, tenant_id text, trace text) ON CONFLICT (id) DO NOTHING RETURNING id"
        ),
        claim=partial(_claim, table),
        next_due=partial(_next_due, table),
        lapsed=text("SELECT 1"),
        touch=text(f"SELECT 1 FROM {table} LIMIT 1"),
        recover=text(
            f"WITH lapsed AS MATERIALIZED (SELECT j.id FROM {table} AS j WHERE j.status = 'running' "
            f"AND j.locked_until < {_NOW} "
            # A lease taken before the server's last start could not be renewed while it was away.
            "AND (j.lease_token IS NULL OR j.lease_token LIKE '%' || " + _INCARNATION + " OR "
            "(SELECT pg_postmaster_start_time() < clock_timestamp() - :grace * interval '1 second')) "
            "ORDER BY j.locked_until LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED) "
            f"UPDATE {table} AS j SET {waits('j.', _NOW, vanished)}, "
            f"attempts = least(j.attempts, greatest(j.max_attempts - 1, 0)), lapses = j.lapses + 1, {freed} "
            "FROM lapsed WHERE j.id = lapsed.id RETURNING j.id"
        ),
        # FOR UPDATE, because a foreign key's lock on the row would make the DELETE wait.
        done=text(f"{_held(table, 'UPDATE')} DELETE FROM {table} AS j USING held WHERE j.id = held.id RETURNING j.id"),
        keep=_settled(table, "status = 'done', finished_at = clock_timestamp(), locked_until = NULL"),
        retry=_settled(
            table,
            f"{waits('j.', _NOW, 'coalesce(held.error, j.last_error)')}, {freed}, "
            "attempts = greatest(j.attempts - CAST(held.refund AS integer), 0), "
            f"available_at = coalesce({_EPOCH} + held.until * interval {_MICROSECOND}, "
            "clock_timestamp() + held.delay * interval '1 second'), "
            "traceback = coalesce(held.traceback, j.traceback), "
            "snoozed_since = CASE WHEN held.snooze THEN coalesce(j.snoozed_since, j.started_at) "
            "ELSE j.snoozed_since END",
            "delay float8",
            "until float8",
            "error text",
            "traceback text",
            "refund boolean",
            "snooze boolean",
        ),
        bury=_settled(
            table,
            f"status = 'dead', {freed}, died_at = clock_timestamp(), "
            "last_error = held.error, traceback = held.traceback",
            "error text",
            "traceback text",
        ),
        release=_settled(
            table, f"{waits('j.', _NOW, 'j.last_error')}, {freed}, attempts = greatest(j.attempts - 1, 0)"
        ),
        extend=text(
            f"{_held(table, 'NO KEY UPDATE')} UPDATE {table} AS j "
            "SET locked_until = clock_timestamp() + :visibility * interval '1 second' "
            "FROM held WHERE j.id = held.id RETURNING j.id, j.cancel_requested"
        ),
        current=text(
            f"SELECT j.id FROM {_given()} JOIN {table} AS j ON j.id = g.id WHERE {_TOKEN} = g.token AND {_RUNNING}"
        ),
        complete=text(f"DELETE FROM {table} AS j WHERE {held}"),
        complete_keeping=text(
            f"UPDATE {table} AS j SET status = 'done', finished_at = clock_timestamp(), locked_until = NULL "
            f"WHERE {held}"
        ),
        committed=text(
            f"SELECT 1 FROM {table} AS j WHERE j.id = :id AND NOT (j.status = 'done' AND {_TOKEN} = :token)"
        ),
        prune_done=text(
            f"DELETE FROM {table} WHERE id IN (SELECT j.id FROM {table} AS j WHERE j.status = 'done' "
            "AND j.finished_at < (SELECT clock_timestamp() - :seconds * interval '1 second') "
            "ORDER BY j.finished_at LIMIT :limit FOR UPDATE SKIP LOCKED)"
        ),
        record=text(
            f"INSERT INTO {table}_counters AS c (task, done, failed) SELECT g.task, g.done, g.failed "
            "FROM json_to_recordset(CAST(:batch AS json)) AS g(task text, done bigint, failed bigint) ORDER BY g.task "
            "ON CONFLICT (task) DO UPDATE SET done = c.done + excluded.done, failed = c.failed + excluded.failed"
        ),
        counts=text(
            f"SELECT (SELECT count(*) FROM {table} WHERE status = 'pending' AND available_at <= {_NOW}), "
            f"(SELECT count(*) FROM {table} WHERE status = 'pending' AND available_at > {_NOW}), "
            f"(SELECT count(*) FROM {table} WHERE status = 'running'), "
            f"(SELECT count(*) FROM {table} WHERE status = 'dead')"
        ),
        counters=text(f"SELECT task, done, failed FROM {table}_counters ORDER BY task"),
        oldest=text(
            "SELECT extract(epoch FROM clock_timestamp() - min(d.available_at))::float8 FROM "
            + _per_priority(
                f"SELECT j.available_at FROM {table} AS j WHERE j.status = 'pending' AND j.priority = p.priority "
                f"AND j.available_at <= {_NOW} AND j.available_at > '-infinity' ORDER BY j.available_at LIMIT 1",
                0,
            )
            + ") AS d"
        ),
        dead=partial(_dead, table),
        revive=text(f"UPDATE {table} SET {revived} WHERE status = 'dead' AND id IN {ids} RETURNING id"),
        discard=text(f"DELETE FROM {table} WHERE status = 'dead' AND id IN {ids} RETURNING id"),
        find=text(f"SELECT {_INSPECTED} FROM {table} AS j WHERE j.id = :id"),
        listing=partial(_listing, table),
        remove=text(f"DELETE FROM {table} WHERE id = :id AND status = 'pending' RETURNING id"),
        tell=text(f"UPDATE {table} SET cancel_requested = true WHERE id = :id AND status = 'running' RETURNING id"),
    )
