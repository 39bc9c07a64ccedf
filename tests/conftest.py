"""Fixtures every test may use: servers, fresh databases, proxies; and the check that a test leaves nothing behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.leaks import leftover_children, leftover_threads, wait_for_no_connection_to, wait_for_no_open_file
from tests.quiet import pytest_runtest_protocol, pytest_unconfigure  # noqa: F401  (hooks)
from tests.servers import (
    PostgresServer,
    Proxy,
    RabbitServer,
    RedisServer,
    ServerUnavailable,
    find_postgres,
    find_rabbitmq,
    find_redis,
)


def pytest_configure() -> None:
    """Let SIGTERM end the run like Ctrl-C, so that the private servers are stopped and their folders removed."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", returncode=143))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process behind, naming it."""
    before = threading.enumerate()
    yield
    threads = [thread.name for thread in leftover_threads(before)]
    children = leftover_children()
    problems = [f"thread {name!r} is still running" for name in threads]
    problems += [f"child process {child} was left behind" for child in children]
    if problems:
        pytest.fail("the test did not clean up: " + "; ".join(problems), pytrace=False)


def _start_postgres(*, private: bool) -> PostgresServer:
    try:
        return find_postgres(private=private)
    except ServerUnavailable as error:
        # Not a skip, and not the same failure once per test: the run as a whole cannot prove what it is for.
        pytest.exit(str(error), returncode=3)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL, started when first asked for. Shared: tests do not stop it."""
    server = _start_postgres(private=False)
    yield server
    server.close()


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL database that only this test uses."""
    yield from _fresh_database(postgres_server)


@pytest.fixture(scope="session")
def _private_postgres() -> Iterator[PostgresServer]:
    server = _start_postgres(private=True)
    yield server
    server.close()


@pytest.fixture
def killable_postgres(_private_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL that this test may stop, kill and restart; it runs again for the next test."""
    yield _private_postgres
    _private_postgres.start()


@pytest.fixture
def killable_postgres_dsn(killable_postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database on `killable_postgres`."""
    yield from _fresh_database(killable_postgres)


def _fresh_database(server: PostgresServer) -> Iterator[str]:
    name = server.create_database()
    yield server.dsn(name)
    server.start()
    try:
        wait_for_no_connection_to(server.port)
    finally:
        server.drop_database(name)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Iterator[Path]:
    """Where this test may have a SQLite file; the file does not exist yet."""
    path = tmp_path / "jobs.db"
    yield path
    wait_for_no_open_file(path)


@pytest.fixture
def sqlite_dsn(sqlite_path: Path) -> str:
    """The URL of a SQLite file that only this test uses."""
    return f"sqlite:///{sqlite_path}"


def _start_redis(*, private: bool) -> RedisServer:
    try:
        return find_redis(private=private)
    except ServerUnavailable as error:
        pytest.exit(str(error), returncode=3)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The session's Redis, started when first asked for. Shared: tests do not stop or configure it."""
    server = _start_redis(private=False)
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The URL of an empty Redis database that only this test uses."""
    redis_server.empty()
    yield redis_server.url
    wait_for_no_connection_to(redis_server.port)


@pytest.fixture(scope="session")
def _private_redis() -> Iterator[RedisServer]:
    server = _start_redis(private=True)
    yield server
    server.close()


@pytest.fixture
def killable_redis(_private_redis: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis that this test may stop, kill, configure and restart; it runs again for the next test."""
    _private_redis.start()
    _private_redis.empty()
    yield _private_redis
    _private_redis.start()


def _start_rabbitmq(*, private: bool) -> RabbitServer:
    try:
        return find_rabbitmq(private=private)
    except ServerUnavailable as error:
        pytest.exit(str(error), returncode=3)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitServer]:
    """The session's RabbitMQ, started when first asked for. Shared: tests do not stop or configure it."""
    server = _start_rabbitmq(private=False)
    yield server
    server.close()


@pytest.fixture
def rabbitmq_url(rabbitmq_server: RabbitServer) -> Iterator[str]:
    """The URL of RabbitMQ; a test takes a queue name of its own from `rabbitmq_server.new_name()`."""
    yield rabbitmq_server.url
    wait_for_no_connection_to(rabbitmq_server.port)


@pytest.fixture(scope="session")
def _private_rabbitmq() -> Iterator[RabbitServer]:
    server = _start_rabbitmq(private=True)
    yield server
    server.close()


@pytest.fixture
def killable_rabbitmq(_private_rabbitmq: RabbitServer) -> Iterator[RabbitServer]:
    """A RabbitMQ that this test may stop, kill, configure and restart; it runs again for the next test."""
    _private_rabbitmq.start()
    yield _private_rabbitmq
    _private_rabbitmq.start()


@pytest.fixture
def proxy() -> Iterator[Callable[[int], Proxy]]:
    """Make a running proxy to a loopback port: `proxy(postgres_server.port)`; closed after the test."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(Proxy(port))
