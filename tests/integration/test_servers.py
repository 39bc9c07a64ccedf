"""The servers of the tests do what the fault tests rely on."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.servers import PostgresServer, ServerUnavailable, find_postgres
from tests.servers.network import PORTS
from tests.servers.postgres_local import LocalPostgres
from tests.servers.postgres_programs import _in_package, _in_wheel


def _one(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def test_databases_are_fresh_owned_and_separate(postgres_server: PostgresServer) -> None:
    first, second = (postgres_server.create_database() for _ in range(2))
    _one(postgres_server.dsn(first), "CREATE TABLE kept (id int)")
    assert _one(postgres_server.dsn(second), "SELECT count(*) FROM pg_class WHERE relname = 'kept'") == 0
    assert _one(postgres_server.dsn(second), "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    for name in (first, second):
        postgres_server.drop_database(name)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(postgres_server.dsn(first))


def test_a_wrong_password_is_refused(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    wrong = postgres_dsn.replace(postgres_server.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_a_killed_server_keeps_what_was_committed_and_its_port(
    killable_postgres: PostgresServer, killable_postgres_dsn: str
) -> None:
    port = killable_postgres.port
    assert port in PORTS
    with psycopg.connect(killable_postgres_dsn) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (2)")
        killable_postgres.kill()
        assert not killable_postgres.running
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    killable_postgres.start()
    assert killable_postgres.port == port
    assert _one(killable_postgres_dsn, "SELECT count(*) FROM kept") == 1


def test_a_killed_server_leaves_no_process(killable_postgres: PostgresServer) -> None:
    if not isinstance(killable_postgres, LocalPostgres):
        killable_postgres.kill()  # in a container nothing can be left: its processes end with it
        assert not killable_postgres.running
        return
    assert killable_postgres._process is not None
    family = psutil.Process(killable_postgres._process.pid).children(recursive=True)
    assert family
    killable_postgres.kill()
    assert [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_restart_closes_connections_in_order(killable_postgres: PostgresServer, killable_postgres_dsn: str) -> None:
    with psycopg.connect(killable_postgres_dsn) as connection:
        connection.execute("SELECT 1")
        killable_postgres.restart()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    assert _one(killable_postgres_dsn, "SELECT 1") == 1


def test_commits_wait_for_the_log(postgres_dsn: str) -> None:
    assert _one(postgres_dsn, "SHOW synchronous_commit") == "on"


def test_the_wheel_brings_a_server_that_works_from_a_closed_folder(tmp_path: Path) -> None:
    programs = _in_wheel()
    assert programs is not None, "the test dependencies include a wheel with PostgreSQL"
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)  # as root's home is to the user the server runs as
    for part in programs.parts:
        shutil.copytree(part, closed / part.name, symlinks=True)
    package = closed / programs.parts[0].name
    moved = _in_package(package)
    assert moved is not None
    server = LocalPostgres(moved)
    folder = server._folder
    try:
        server.start()
        name = server.create_database()
        assert _one(server.dsn(name), "SELECT 1") == 1
    finally:
        server.close()
    assert not folder.exists()


def test_an_external_url_is_used_and_left_running(postgres_server: PostgresServer) -> None:
    external = find_postgres({"JFAST_TEST_POSTGRES_URL": postgres_server.admin_dsn()})
    assert external.port == postgres_server.port
    name = external.create_database()
    assert _one(external.dsn(name), "SELECT current_user") == external.role
    with pytest.raises(ServerUnavailable, match="killable_postgres"):
        external.kill()
    external.drop_database(name)
    external.close()
    assert _one(postgres_server.admin_dsn(), f"SELECT count(*) FROM pg_roles WHERE rolname = '{external.role}'") == 0


def test_an_external_url_that_does_not_work_says_which_variable(postgres_server: PostgresServer) -> None:
    url = postgres_server.dsn("nosuchdatabase")
    with pytest.raises(ServerUnavailable, match="unset JFAST_TEST_POSTGRES_URL") as caught:
        find_postgres({"JFAST_TEST_POSTGRES_URL": url})
    assert postgres_server.password not in str(caught.value)
