"""The outbox's SQL. Instants on PostgreSQL are its clock's; on SQLite ``:now`` is this machine's, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from sqlalchemy import TextClause, text

__all__ = ["Statements", "statements"]

TABLE: Final = "jfast_outbox"
_COLUMNS: Final = "seq, id, kind, destination, message_key, request_id, tenant_id, attempts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """One dialect's statements, each with its parameters beside it."""

    insert: TextClause  # :id, :kind, :destination, :payload, :message_key, :request_id, :tenant_id, :due, :delay
    find: TextClause  # :ids
    due: TextClause  # :limit
    sizes: TextClause  # :ids
    lock: TextClause  # SQLite: take the only write lock before the look that decides
    heads: TextClause  # PostgreSQL :batch of keys, each with how many; SQLite :destination, :message_key, :limit
    blockers: TextClause  # :ids
    hold: TextClause  # :ids
    lease: TextClause  # :ids, :token, :seconds
    next_due: TextClause
    jobs_due: TextClause  # :seconds from now
    delayed: TextClause  # :cap
    waiting: TextClause  # :task, :queue, :tenant_id, each None for any; :limit
    unsent: TextClause  # :ids
    cancel: TextClause  # :ids
    published: TextClause  # :ids, :token
    failed: TextClause  # :id, :token, :dead, :delay, :error
    hasten: TextClause  # :kind, :error, :limit
    release: TextClause  # :ids, :token, :held
    unhold: TextClause  # PostgreSQL :batch of keys, :limit; SQLite :destination, :message_key, :limit
    held_key: TextClause  # :destination, :message_key: the next key after this one of which a row is held
    clock_back: TextClause  # :seconds that a lease or a retry's delay may be long
    prune: TextClause  # :seconds, :limit
    counts: TextClause  # :cap
    oldest: TextClause
    failing: TextClause
    last_death: TextClause
    dead: TextClause  # :limit
    revive: TextClause  # :ids
    revive_some: TextClause  # :limit
    discard: TextClause  # :ids
    discard_some: TextClause  # :limit


def statements(dialect: str) -> Statements:
    """Return the statements for ``postgresql`` or ``sqlite``."""
    postgres = dialect == "postgresql"
    words, sources = (_POSTGRES, {**_SOURCES, **_FOR_MANY_KEYS}) if postgres else (_SQLITE, _SOURCES)
    return Statements(**{field.name: text(sources[field.name].format(**words)) for field in fields(Statements)})


_POSTGRES: Final = {
    "now": "(SELECT clock_timestamp())",
    "in_delay": "(SELECT clock_timestamp() + CAST(:delay AS float8) * interval '1 second')",
    "in_seconds": "(SELECT clock_timestamp() + CAST(:seconds AS float8) * interval '1 second')",
    "before_seconds": "(SELECT clock_timestamp() - CAST(:seconds AS float8) * interval '1 second')",
    "ids": "(SELECT jsonb_array_elements_text(CAST(:ids AS jsonb)))",
    "payload_in": "CAST(:payload AS jsonb)",
    "payload_out": "CAST(payload AS text)",
    "size": "pg_column_size(payload)",
    "due_in": "CAST(:due AS timestamptz)",
    "number": "CAST(:delay AS float8)",
    "skip": "FOR UPDATE SKIP LOCKED",
    "share": "FOR SHARE SKIP LOCKED",
    "queue": "payload ->> 'queue'",
    "until_due": "CAST(extract(epoch FROM available_at - clock_timestamp()) AS float8)",
    "age": "CAST(extract(epoch FROM clock_timestamp() - coalesce(due_at, created_at)) AS float8)",
    "renumbered": ", seq = coalesce(seq, nextval('jfast_outbox_seq'))",
}
_SQLITE: Final = {
    "now": ":now",
    "in_delay": "(:now + CAST(:delay * 1000000 AS INTEGER))",
    "in_seconds": "(:now + CAST(:seconds * 1000000 AS INTEGER))",
    "before_seconds": "(:now - CAST(:seconds * 1000000 AS INTEGER))",
    "ids": "(SELECT value FROM json_each(:ids))",
    "payload_in": ":payload",
    "payload_out": "payload",
    "size": "length(payload)",
    "due_in": ":due",
    "number": ":delay",
    "skip": "",
    "share": "",
    "queue": "json_extract(payload, '$.queue')",
    "until_due": "(available_at - :now) / 1000000.0",
    "age": "(:now - coalesce(due_at, created_at)) / 1000000.0",
    "renumbered": "",
}
_WAITING: Final = f"{_COLUMNS}, {{payload_out}} AS payload, last_error, created_at, due_at"
_EARLY: Final = "status = 'pending' AND coalesce(due_at, created_at) > {now} AND due_at IS NOT NULL AND kind = 'job'"
#: Rows that are named are found by their ids: `status || ''` keeps the planner from reading a partial index from end to
#: end, which it takes for short where the table has just filled.
_SOURCES: Final = {
    "insert": (
        f"INSERT INTO {TABLE} (id, kind, destination, payload, message_key, request_id, tenant_id, status, attempts, "
        "created_at, available_at, due_at) SELECT :id, :kind, :destination, {payload_in}, :message_key, :request_id, "
        ":tenant_id, 'pending', 0, {now}, coalesce(w.due, {now}), w.due FROM (SELECT coalesce({due_in}, "
        "CASE WHEN {number} IS NOT NULL THEN {in_delay} END) AS due) AS w WHERE true ON CONFLICT (id) DO NOTHING"
    ),
    "find": f"SELECT id, kind, destination FROM {TABLE} WHERE id IN {{ids}}",
    "sizes": f"SELECT id, octet_length({{payload_out}}) AS size FROM {TABLE} WHERE id IN {{ids}}",
    "lock": f"UPDATE {TABLE} SET held = held WHERE id IS NULL",
    "due": (
        f"SELECT {_COLUMNS}, {{size}} AS size FROM {TABLE} WHERE status = 'pending' AND held = 0 "
        "AND available_at <= {now} ORDER BY available_at, seq LIMIT :limit {skip}"
    ),
    "heads": (
        f"SELECT seq, id, held FROM {TABLE} WHERE status = 'pending' AND message_key IS NOT NULL "
        "AND destination = :destination AND message_key = :message_key ORDER BY seq LIMIT :limit"
    ),
    "blockers": f"SELECT id FROM {TABLE} WHERE id IN {{ids}} AND status || '' = 'pending' {{share}}",
    "hold": f"UPDATE {TABLE} SET held = 1 WHERE id IN {{ids}} AND status || '' = 'pending'",
    "lease": (
        f"UPDATE {TABLE} SET lease_token = :token, available_at = {{in_seconds}} WHERE id IN {{ids}} "
        "AND status || '' = 'pending' RETURNING id, {payload_out} AS payload"
    ),
    "next_due": (
        f"SELECT {{until_due}} FROM {TABLE} WHERE status = 'pending' AND held = 0 ORDER BY available_at, seq LIMIT 1"
    ),
    "jobs_due": (
        f"SELECT 1 FROM {TABLE} WHERE status = 'pending' AND held = 0 AND available_at <= {{in_seconds}} "
        "AND kind = 'job' LIMIT 1"
    ),
    "delayed": f"SELECT count(*) AS number FROM (SELECT 1 FROM {TABLE} WHERE {_EARLY} LIMIT :cap) AS early",
    "waiting": (
        f"SELECT {_WAITING}, 1 AS early FROM {TABLE} WHERE {_EARLY} "
        "AND (CAST(:task AS text) IS NULL OR destination = :task) "
        "AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id) "
        "AND (CAST(:queue AS text) IS NULL OR coalesce({queue}, 'default') = :queue) "
        "ORDER BY coalesce(due_at, created_at) LIMIT :limit"
    ),
    "unsent": (
        f"SELECT {_WAITING}, coalesce(due_at > {{now}}, false) AS early FROM {TABLE} "
        "WHERE id IN {ids} AND status || '' = 'pending' AND kind = 'job'"
    ),
    "cancel": (
        f"DELETE FROM {TABLE} WHERE id IN {{ids}} AND status || '' = 'pending' AND kind = 'job' "
        "AND lease_token IS NULL RETURNING id"
    ),
    "published": (
        f"UPDATE {TABLE} SET status = 'published', published_at = {{now}}, last_error = NULL, lease_token = NULL "
        "WHERE id IN {ids} AND lease_token = :token AND status || '' = 'pending'"
    ),
    "failed": (
        f"UPDATE {TABLE} SET attempts = attempts + 1, lease_token = NULL, last_error = :error, "
        "status = CASE WHEN :dead = 1 THEN 'dead' ELSE 'pending' END, "
        "died_at = CASE WHEN :dead = 1 THEN {now} END, available_at = {in_delay} "
        "WHERE id = :id AND lease_token = :token AND status || '' = 'pending'"
    ),
    "hasten": (
        f"UPDATE {TABLE} SET available_at = {{now}} WHERE id IN (SELECT id FROM {TABLE} WHERE status = 'pending' "
        "AND attempts > 0 AND available_at > {now} AND kind = :kind AND lease_token IS NULL "
        "AND last_error LIKE :error ORDER BY available_at LIMIT :limit {skip})"
    ),
    "release": (
        f"UPDATE {TABLE} SET lease_token = NULL, available_at = {{now}}, held = :held "
        "WHERE id IN {ids} AND lease_token = :token AND status || '' = 'pending'"
    ),
    "unhold": (
        f"UPDATE {TABLE} SET held = 0 WHERE held + 0 = 1 AND id IN (SELECT id FROM {TABLE} WHERE status = 'pending' "
        "AND message_key IS NOT NULL AND held = 1 AND destination = :destination AND message_key = :message_key "
        "ORDER BY seq LIMIT :limit)"
    ),
    "held_key": (
        f"SELECT destination, message_key FROM {TABLE} WHERE status = 'pending' AND message_key IS NOT NULL "
        "AND held = 1 AND (destination, message_key) > (:destination, :message_key) "
        "ORDER BY destination, message_key LIMIT 1"
    ),
    "clock_back": (
        f"UPDATE {TABLE} SET available_at = {{now}} WHERE status = 'pending' AND held = 0 AND available_at > {{now}} "
        "AND (due_at IS NULL OR due_at <= {now}) "
        "AND ((attempts = 0 AND lease_token IS NULL) OR available_at > {in_seconds})"
    ),
    "prune": (
        f"DELETE FROM {TABLE} WHERE id IN (SELECT id FROM {TABLE} WHERE status = 'published' "
        "AND published_at < {before_seconds} ORDER BY published_at LIMIT :limit {skip})"
    ),
    "counts": "SELECT "
    + ", ".join(
        f"(SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE {where} LIMIT :cap) AS {name}) AS {name}"
        for name, where in (
            ("pending", "status = 'pending'"),
            ("failing", "status = 'pending' AND attempts > 0"),
            ("dead", "status = 'dead'"),
            ("published", "status = 'published'"),
        )
    ),
    "oldest": f"SELECT {{age}} FROM {TABLE} WHERE status = 'pending' ORDER BY coalesce(due_at, created_at) LIMIT 1",
    "failing": (
        f"SELECT last_error FROM {TABLE} WHERE status = 'pending' AND attempts > 0 ORDER BY available_at DESC LIMIT 1"
    ),
    "last_death": (
        f"SELECT last_error FROM {TABLE} WHERE status = 'dead' ORDER BY coalesce(died_at, created_at) DESC, id DESC "
        "LIMIT 1"
    ),
    "dead": (
        f"SELECT {_COLUMNS}, {{payload_out}} AS payload, last_error, created_at, coalesce(died_at, available_at) "
        f"AS died_at FROM {TABLE} WHERE status = 'dead' ORDER BY coalesce(died_at, created_at) DESC, id DESC "
        "LIMIT :limit"
    ),
    "revive": (
        f"UPDATE {TABLE} SET status = 'pending', attempts = 0, available_at = {{now}}, died_at = NULL, held = 0, "
        "lease_token = NULL{renumbered} WHERE id IN {ids} AND status || '' = 'dead' RETURNING id"
    ),
    "revive_some": (
        f"UPDATE {TABLE} SET status = 'pending', attempts = 0, available_at = {{now}}, died_at = NULL, held = 0, "
        f"lease_token = NULL{{renumbered}} WHERE id IN (SELECT id FROM {TABLE} WHERE status = 'dead' "
        "ORDER BY coalesce(died_at, created_at), id LIMIT :limit {skip}) RETURNING id"
    ),
    "discard": f"DELETE FROM {TABLE} WHERE id IN {{ids}} AND status || '' = 'dead' RETURNING id",
    "discard_some": (
        f"DELETE FROM {TABLE} WHERE id IN (SELECT id FROM {TABLE} WHERE status = 'dead' LIMIT :limit {{skip}}) "
        "RETURNING id"
    ),
}

_OF_KEY: Final = (
    f"FROM {TABLE} AS o WHERE o.status = 'pending' AND o.message_key IS NOT NULL "
    "AND o.destination = k.destination AND o.message_key = k.message_key"
)
_KEYS: Final = "jsonb_to_recordset(CAST(:batch AS jsonb)) AS k(destination text, message_key text, number int)"
#: One statement for all keys of a batch, where one of its own for each would cost a round trip to the server.
_FOR_MANY_KEYS: Final = {
    "heads": (
        f"SELECT k.destination, k.message_key, h.seq, h.id, h.held FROM {_KEYS} CROSS JOIN LATERAL "
        f"(SELECT o.seq, o.id, o.held {_OF_KEY} ORDER BY o.seq LIMIT k.number) AS h ORDER BY h.seq"
    ),
    "unhold": (
        f"UPDATE {TABLE} SET held = 0 WHERE held + 0 = 1 AND id IN (SELECT h.id FROM {_KEYS} CROSS JOIN LATERAL "
        f"(SELECT o.id {_OF_KEY} AND o.held = 1 ORDER BY o.seq LIMIT :limit) AS h)"
    ),
}
