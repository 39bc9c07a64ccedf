"""What the two dialects' statements have in common: their names, their columns, and the shape of what they return.

Each dialect is one module of pure text, ``sql_postgresql`` and ``sql_sqlite``, with a function ``statements(table)``.
Both take the same parameters - a batch is one JSON text - and return the same columns: times as microseconds since the
epoch, payload and trace as text, so that no driver can fail on a row before this library has looked at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import TextClause

from jfast_sync.outcome import CANCELLED

__all__ = ["COLUMNS", "PRIORITIES", "TIMES", "Statements", "waits"]

PRIORITIES: Final = tuple(range(9, -10, -1))
#: Read in this order, by name, never with ``*``: a column added from outside changes nothing here.
COLUMNS: Final = (
    "id",
    "task",
    "payload",
    "queue",
    "priority",
    "attempts",
    "max_attempts",
    "available_at",
    "created_at",
    "request_id",
    "tenant_id",
    "trace",
    "last_error",
    "lapses",
    "snoozed_since",
    "started_at",
)
TIMES: Final = frozenset({"available_at", "created_at", "snoozed_since", "started_at", "died_at", "finished_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """Every statement of one dialect on one table."""

    insert: TextClause  # :batch
    claim: Callable[[int, bool], TextClause]  # (number of queues, by task); :limit, :visibility, :token, :worker
    next_due: Callable[[int, bool], TextClause]  # the seconds until a job is due, at most one row
    lapsed: TextClause  # how many leases may have to be recovered (cheap; no lock)
    touch: TextClause  # fails where the table cannot be read
    recover: TextClause  # :limit, :error, :grace
    done: TextClause  # :batch; deletes
    keep: TextClause  # :batch; marks as done
    retry: TextClause  # :batch
    bury: TextClause  # :batch
    release: TextClause  # :batch
    extend: TextClause  # :batch, :visibility
    current: TextClause  # :batch; ids whose token is current
    complete: TextClause  # :id, :token; deletes
    complete_keeping: TextClause
    committed: TextClause  # :id, :token; a row when it was not
    prune_done: TextClause  # :seconds, :limit
    record: TextClause  # :batch
    counts: TextClause
    counters: TextClause
    oldest: TextClause
    dead: Callable[[str], TextClause]  # (conditions); :limit
    revive: TextClause  # :batch
    discard: TextClause  # :batch
    find: TextClause  # :id
    listing: Callable[[str, str], TextClause]  # (state, conditions); :limit
    remove: TextClause  # :id; where it is pending
    tell: TextClause  # :id; where it is running


def waits(row: str, now: str, error: str) -> str:
    """What an UPDATE sets so that a job waits again, or is a dead letter where somebody had cancelled it meanwhile.

    Args:
        row: how a column of the job is named: "j." or nothing.
        now: an expression for the database's time.
        error: an expression for the error the job has if it waits.
    """
    cancelled = f"CASE WHEN {row}cancel_requested THEN"
    return (
        f"status = {cancelled} 'dead' ELSE 'pending' END, died_at = {cancelled} {now} END, "
        f"last_error = {cancelled} '{CANCELLED}' || coalesce(': ' || {error}, '') ELSE {error} END"
    )
