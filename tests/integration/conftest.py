"""Fixtures of the integration tests."""

from __future__ import annotations

from tests.integration.sql_support import dsn, postgres_queue, queue, sqlite_queue

__all__ = ["dsn", "postgres_queue", "queue", "sqlite_queue"]
