"""The database: engine and sessions, schema steps, and the few questions on which PostgreSQL and SQLite differ."""

from __future__ import annotations
