"""The projects of the process tests, and a database server that may be killed."""

from __future__ import annotations

from tests.process.fixtures import dsn, new_project

__all__ = ["dsn", "new_project"]
