"""The asynchronous sibling beside ours: its virtual environment, its running app, and our app on one database."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text

from jfast_sync.app import build
from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.declarations import isolated
from tests.servers.processes import forget, register
from tests.sharing.environment import sibling_python

DRIVER: Final = Path(__file__).with_name("sibling.py")
TOML: Final = """
[app]
name = "shop"
version = "1.2.3"

[plugins]
enabled = ["observability", "database", "queue", "outbox"]

[plugin.database]
dsn = "{dsn}"
pool_size = 5
max_overflow = 5

[plugin.queue]
backend = "postgres"
visibility_timeout = 60
max_attempts = 3
prefetch = 10

[plugin.outbox]
relay = false
"""
EFFECTS: Final = text(
    "CREATE TABLE effects (who text, task text, n integer, tenant_id text, request_id text, trace text)"
)


class Sibling:
    """The sibling's process; ``ask("enqueue", ...)`` calls that function of its driver, in the app that is open."""

    def __init__(self, python: Path) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("JFAST_", "PYTHON"))}
        self._process = subprocess.Popen(
            [python, DRIVER],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        register(self._process.pid)

    def ask(self, what: str, **fields: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(f"the sibling ended: {self._process.stderr.read()[-3000:]}")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["answer"]

    def close(self) -> None:
        _, errors = self._process.communicate(timeout=30)
        forget(self._process.pid)
        assert self._process.returncode == 0, errors[-3000:]


@pytest.fixture
def project(postgres_dsn: str, tmp_path: Path) -> Path:
    """A folder with the one ``jfast.toml`` both libraries read, whose DSN is written as the sibling needs it."""
    (tmp_path / "jfast.toml").write_text(TOML.format(dsn=postgres_dsn.replace("postgresql:", "postgresql+asyncpg:", 1)))
    database = Database(postgres_dsn)
    database.transact(lambda connection: connection.execute(EFFECTS))
    database.dispose()
    return tmp_path


@pytest.fixture(scope="session")
def sibling_process() -> Iterator[Sibling]:
    """The sibling's process; its imports are most of what a start costs, so all tests share it."""
    process = Sibling(sibling_python())
    yield process
    process.close()


@pytest.fixture
def opened_sibling(sibling_process: Sibling, project: Path) -> Callable[..., AbstractContextManager[Sibling]]:
    """Run the sibling's app for a block; it sets up what is missing of its tables."""

    @contextmanager
    def opened() -> Iterator[Sibling]:
        assert sibling_process.ask("open", folder=str(project)) == "open"
        yield sibling_process
        assert sibling_process.ask("close") == "closed"

    return opened


@pytest.fixture
def sibling(opened_sibling: Callable[..., AbstractContextManager[Sibling]]) -> Iterator[Sibling]:
    """The sibling's app, running for the length of the test."""
    with opened_sibling() as sibling:
        yield sibling


@pytest.fixture
def open_ours(project: Path) -> Iterator[Callable[..., JFast]]:
    """Build an app of ours from the same ``jfast.toml``: tasks declared in the test are its tasks."""
    with ExitStack() as stack:
        stack.enter_context(isolated())

        def start(**overrides: Any) -> JFast:
            app = stack.enter_context(build(load_config(project, environ={}, overrides=overrides)))
            app.setup()
            return app

        yield start


@pytest.fixture
def ours(sibling: Sibling, open_ours: Callable[..., JFast]) -> JFast:
    """Our app, on tables that the sibling has made."""
    return open_ours()
