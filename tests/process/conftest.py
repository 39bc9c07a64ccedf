"""Projects on both databases, for tests that start real worker processes."""

from __future__ import annotations

from tests.process.fixtures import dsn, new_project

__all__ = ["dsn", "new_project"]
