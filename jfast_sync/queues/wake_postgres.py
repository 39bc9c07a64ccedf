"""Waking across processes by PostgreSQL's notifications."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from jfast_sync.backoff import backoff
from jfast_sync.redact import error_text
from jfast_sync.sql import dsn as forms

if TYPE_CHECKING:
    from jfast_sync.sql.engine import Database

__all__ = ["PostgresListener", "channel", "listening_connection", "notify"]

log = logging.getLogger(__name__)


def channel(table: str, schema: str) -> str:
    """Return the notification channel of a table: hashed, because a name has at most 63 bytes."""
    return "jfast_" + hashlib.sha256(f"{schema}.{table}".encode()).hexdigest()[:32]


class PostgresListener:
    """A connection that LISTENs, opened by the claimer when it first waits and again, with a pause, when it breaks."""

    def __init__(self, connect: Callable[[], Any], name: Callable[[], str]) -> None:
        self._connect = connect
        self._name = name
        self._connection: Any = None
        self._failures = 0
        self._not_before = 0.0

    def prepare(self) -> int | None:
        if self._connection is None and time.monotonic() >= self._not_before:
            self._open()
        return None if self._connection is None else self._connection.fileno()

    def _open(self) -> None:
        connection: Any = None
        try:
            connection = self._connect()
            connection.execute(f'LISTEN "{self._name()}"')
        except Exception as exc:
            if connection is not None:
                connection.close()
            self._failed(exc)
            return
        self._connection, self._failures = connection, 0

    def drain(self) -> None:
        if self._connection is None:
            return
        try:
            self._connection.pgconn.consume_input()
            while self._connection.pgconn.notifies():
                pass
        except Exception as exc:
            self.close()
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + backoff(self._failures, base=0.5, cap=30.0, jitter=0.5)
        if self._failures == 1:
            log.warning("not listening for new jobs for now, polling goes on: %s", error_text(exc))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def notify(database: Database, name: str) -> None:
    """Notify the waiting claimers; a failure is only logged."""
    try:
        # Not in the transaction of the jobs: a commit that notifies takes a lock that all such commits share.
        with database.control.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SELECT pg_notify(:name, '')"), {"name": name})
    except Exception as exc:
        log.warning("could not wake the workers, they find the job by polling: %s", error_text(exc))


def listening_connection(database: Database, listen_dsn: str | None) -> Any:
    """Open a connection that commits each statement, and is no pool's: a direct one where ``listen_dsn`` leads."""
    if listen_dsn is not None:
        import psycopg

        return psycopg.connect(forms.libpq(listen_dsn), autocommit=True, connect_timeout=5)
    pooled = database.control.raw_connection()
    connection: Any = pooled.driver_connection
    pooled.detach()  # from here it is the listener's
    connection.rollback()
    connection.autocommit = True
    return connection
