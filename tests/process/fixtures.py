"""The fixtures of the process and the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.process.project import Project


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, on each of the two dialects."""
    name = "sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture
def new_project(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Project]]:
    """Make a project on a database: `new_project(dsn, visibility_timeout=2)`; its workers are killed after the test."""
    # Asked for first, so that they are torn down last: they check that every connection is closed.
    for name in ("dsn", "postgres_dsn", "sqlite_path", "sqlite_dsn", "killable_postgres_dsn", "proxy"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    numbers = count(1)
    with ExitStack() as stack:

        def make(dsn: str, **options: Any) -> Project:
            project = Project(tmp_path / f"project-{next(numbers)}", dsn, **options)
            stack.callback(project.close)
            return project

        yield make
