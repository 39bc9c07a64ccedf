"""Runs each test of the suite on every backend that declares what the test needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.backends import BACKENDS, Backend, MemoryBackend, PostgresBackend, SqliteBackend


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability, ...): run on the backends that declare all of these only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    needed = {capability for mark in metafunc.definition.iter_markers("needs") for capability in mark.args}
    able = [kind for kind in BACKENDS if needed <= kind.capabilities]
    assert able, f"no backend declares {needed}"
    metafunc.parametrize("backend", able, ids=[kind.name for kind in able], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The store under test, empty; every queue a test opens on it is closed at the end."""
    made = _make(request)
    yield made
    made.close()


def _make(request: pytest.FixtureRequest) -> Backend:
    kind: type[Backend] = request.param
    if issubclass(kind, PostgresBackend):
        return kind(request.getfixturevalue("postgres_dsn"))
    if issubclass(kind, SqliteBackend):
        return kind(request.getfixturevalue("sqlite_dsn"))
    assert issubclass(kind, MemoryBackend)
    return kind()


@pytest.fixture
def queue(backend: Backend) -> Any:
    """A queue on the store. Typed as Any: what it can do besides `Queue` is what the test's `needs` says."""
    return backend.open()
