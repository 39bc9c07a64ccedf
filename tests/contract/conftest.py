"""Runs each test of the suite on every backend that declares what the test needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.contract.backends import BACKENDS, Backend
from tests.contract.rabbitmq_backend import RabbitBackend, with_name
from tests.contract.redis_backend import RedisBackend
from tests.leaks import wait_for_no_connection_to
from tests.servers import PostgresServer
from tests.servers.rabbitmq import RabbitServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability, ...): run on the backends that declare all of these only")
    config.addinivalue_line(
        "markers", "bare: the store must never have been set up, where others may share an emptied one"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    needed = {capability for mark in metafunc.definition.iter_markers("needs") for capability in mark.args}
    kinds: tuple[type[Backend], ...] = (*BACKENDS, RedisBackend, RabbitBackend)
    able = [kind for kind in kinds if needed <= kind.capabilities]
    assert able, f"no backend declares {needed}"
    metafunc.parametrize("backend", able, ids=[kind.name for kind in able], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The store under test, empty; every queue a test opens on it is closed at the end."""
    kind: type[Backend] = request.param
    bare = request.node.get_closest_marker("bare") is not None
    url = kind.bare_url if bare and kind.bare_url else kind.url
    made = kind(request.getfixturevalue(url)) if url else kind()
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of one database for the whole suite: making one per test takes longer than the test."""
    name = postgres_server.create_database()
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture
def emptied_postgres_dsn(postgres_server: PostgresServer, shared_postgres_dsn: str) -> Iterator[str]:
    """The URL of a database without jobs and without tables of the application's; maybe with the library's."""
    yield shared_postgres_dsn
    wait_for_no_connection_to(postgres_server.port)
    with psycopg.connect(shared_postgres_dsn, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for name in {name for (name,) in tables} - {"jfast_schema"}:
            wipe = sql.SQL("TRUNCATE {}" if name.startswith("jfast_") else "DROP TABLE {}")
            connection.execute(wipe.format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def shared_rabbitmq_name(rabbitmq_server: RabbitServer) -> str:
    """The name of one queue for the whole suite: declaring its levels takes longer than the test."""
    return rabbitmq_server.new_name()


@pytest.fixture
def emptied_rabbitmq_url(rabbitmq_server: RabbitServer, shared_rabbitmq_name: str) -> Iterator[str]:
    """The URL of a queue without messages: the harness empties it when it is closed."""
    yield with_name(rabbitmq_server.url, shared_rabbitmq_name)
    wait_for_no_connection_to(rabbitmq_server.port)


@pytest.fixture
def fresh_rabbitmq_url(rabbitmq_server: RabbitServer) -> str:
    """The URL of a queue that was never set up."""
    return with_name(rabbitmq_server.url, rabbitmq_server.new_name())


@pytest.fixture
def queue(backend: Backend) -> Any:
    """A queue on the store. Typed as Any: what it can do besides `Queue` is what the test's `needs` says."""
    return backend.open()
