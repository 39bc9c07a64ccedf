"""The same work with the driver alone: what a careful engineer would write on an afternoon, as the yardstick."""

from __future__ import annotations

import json
import threading
import time
import uuid

import psycopg

TABLE = """
CREATE TABLE raw_jobs (id text PRIMARY KEY, task text NOT NULL, payload jsonb NOT NULL, status text NOT NULL,
    available_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX raw_jobs_claim ON raw_jobs (available_at) WHERE status = 'pending'
"""
CLAIM = """
UPDATE raw_jobs SET status = 'running' WHERE id = (SELECT id FROM raw_jobs WHERE status = 'pending'
    AND available_at <= now() ORDER BY available_at FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id, task, payload
"""


def enqueue_one_by_one(dsn: str, jobs: int) -> float:
    """Insert ``jobs`` rows, a transaction each, on one connection; return the seconds it took."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        began = time.perf_counter()
        for number in range(jobs):
            connection.execute(
                "INSERT INTO raw_jobs (id, task, payload, status) VALUES (%s, 'noop', %s, 'pending')",
                (uuid.uuid4().hex, json.dumps({"n": number})),
            )
        return time.perf_counter() - began


def drain(dsn: str, threads: int) -> float:
    """Claim and delete every row, one at a time, on ``threads`` connections; return the seconds it took."""

    def run() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while (row := connection.execute(CLAIM).fetchone()) is not None:
                connection.execute("DELETE FROM raw_jobs WHERE id = %s", (row[0],))

    workers = [threading.Thread(target=run) for _ in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began
