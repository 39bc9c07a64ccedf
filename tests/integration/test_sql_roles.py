"""Roles: one that was left on a pooled connection is nobody else's, and one that owns nothing is told what it needs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

from jfast_sync import JFast, Job
from jfast_sync.buses.recording import RecordingBus
from jfast_sync.config import load_config
from jfast_sync.context import Origin, bind
from jfast_sync.errors import SchemaError
from jfast_sync.event import Event
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql import dsn as forms
from jfast_sync.sql import schema
from jfast_sync.sql.engine import Database
from jfast_sync.tasks.registry import Registry
from tests.integration.test_tenants import RIGHTS, Roles, admin, database, notes, role, visible
from tests.waiting import eventually
from tests.worker_harness import Bench

__all__ = ["admin", "database", "notes", "role"]

LEFT = {
    "SET": "SET ROLE {role}",
    "SET after a comment": "/* who else */ SET ROLE {role}",
    "SET after another statement": "SELECT 1; SET ROLE {role}",
    "a block": "DO $$ BEGIN EXECUTE 'SET ROLE {role}'; END $$",
    "set_config": "SELECT set_config('role', '{role}', false)",
    "set_config in a block": "DO $$ BEGIN PERFORM set_config('role', '{role}', false); END $$",
    "set_config beside a word that looks local": "SELECT set_config('role', '{role}', false), (true)",
}


@pytest.fixture
def above(admin: psycopg.Connection) -> Iterator[str]:
    """A role that passes by the policies, which the test's own may become."""
    name = f"above_{secrets.token_hex(4)}"
    admin.execute(sql.SQL("CREATE ROLE {} BYPASSRLS").format(sql.Identifier(name)))
    admin.execute(sql.SQL("GRANT {} TO jfast").format(sql.Identifier(name)))
    admin.execute(sql.SQL("GRANT ALL ON notes TO {}").format(sql.Identifier(name)))
    yield name
    admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def role_of(session: Session) -> str:
    return str(session.execute(text("SELECT current_user")).scalar())


@pytest.mark.parametrize("way", LEFT)
def test_the_next_on_a_connection_has_not_the_role_that_was_left_there(
    database: Database, above: str, way: str
) -> None:
    """The pool has one connection."""
    leave = LEFT[way].format(role=above)
    for _ in range(2):
        attempt = database.attempt("a")
        attempt.session.connection().exec_driver_sql(leave)
        assert visible(attempt.session) == {"a": 2, "b": 3}
        attempt.commit()
        attempt.close()
        successor = database.attempt("b")
        assert (role_of(successor.session), visible(successor.session)) == ("jfast", {"b": 3})
        successor.session.rollback()
        assert visible(successor.session) == {"b": 3}
        successor.close()
        with bind(Origin(tenant_id="b")), database.session() as session:
            assert visible(session) == {"b": 3}
            session.connection().exec_driver_sql(leave)
            session.commit()
            assert (role_of(session), visible(session)) == ("jfast", {"b": 3})


def _by_options(dsn: str, role: str) -> dict[str, Any]:
    return {"connect_args": {"options": f"-c role={role}"}}


def _by_event(dsn: str, role: str) -> dict[str, Any]:
    def become(connection: Any, _record: object) -> None:
        connection.execute(f"SET ROLE {role}")
        connection.commit()

    return {"pool_events": [(become, "connect")]}


@pytest.mark.parametrize("how", [_by_options, _by_event], ids=["options", "a connect event"])
def test_a_role_the_connections_are_opened_with_stays(
    notes: str, admin: psycopg.Connection, above: str, how: Callable[[str, str], dict[str, Any]]
) -> None:
    """An ordinary one here; the pool's connections start as it and go back to it."""
    admin.execute(sql.SQL("ALTER ROLE {} NOBYPASSRLS").format(sql.Identifier(above)))
    engine = create_engine(forms.parse(notes), pool_size=1, max_overflow=0, **how(notes, above))
    database = Database(engine, rls=True)
    for leave in ("SELECT 1", "SET ROLE NONE", "SELECT set_config('role', 'jfast', false)"):
        for tenant, seen in (("a", {"a": 2}), ("b", {"b": 3})):
            with bind(Origin(tenant_id=tenant)), database.session() as session:
                assert (role_of(session), visible(session)) == (above, seen)
                session.connection().exec_driver_sql(leave)
    database.dispose()
    engine.dispose()


def test_behind_a_pooler_the_role_is_the_one_the_server_began_with(notes: str, above: str) -> None:
    """What this client's connection had at first may be what another client has left on the server's."""
    database = Database(notes, pool_size=1, rls=True, pgbouncer=True)
    with database.engine.connect() as connection:
        connection.exec_driver_sql(f"/* another client */ SET ROLE {above}")
        connection.commit()
    for _ in range(2):
        with bind(Origin(tenant_id="b")), database.session() as session:
            assert (role_of(session), visible(session)) == ("jfast", {"b": 3})
    database.dispose()


@pytest.mark.parametrize("pgbouncer", [False, True])
def test_it_costs_no_statement_of_its_own(notes: str, pgbouncer: bool) -> None:
    database = Database(notes, pool_size=1, rls=True, pgbouncer=pgbouncer)
    said: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    for _ in range(3):
        said.clear()
        with database.session() as session:
            session.execute(text("SELECT 1"))
        assert len(said) == 2
    database.dispose()


def test_without_row_level_security_roles_are_left_alone(notes: str, above: str) -> None:
    engine = create_engine(forms.parse(notes), pool_size=1, max_overflow=0)
    database = Database(engine)
    with database.session() as session:
        session.execute(text(f"SET ROLE {above}"))
    with database.session() as session:
        assert role_of(session) == above
    database.dispose()
    engine.dispose()


# --- rights ----------------------------------------------------------------------------------------------------


@pytest.fixture
def app_dsn(notes: str, role: Roles, admin: psycopg.Connection) -> str:
    """The guide's role that owns nothing, with the rights the guide gives it."""
    owner = Database(notes)
    schema.upgrade(owner)
    owner.dispose()
    dsn = role("app")
    admin.execute(RIGHTS.replace("notes_app", urlsplit(dsn).username or "").encode())
    return dsn


def everything(dsn: str, *, elsewhere: bool) -> int:
    """Enqueue, publish, claim, relay, run and tick as an app does; return how many jobs ran."""
    ran: list[str] = []
    tasks = Registry()
    tasks.task("note")(lambda payload: ran.append("note"))
    tasks.task("keyed", idempotent_on=lambda payload: 1)(lambda payload: ran.append("keyed"))
    overrides: dict[str, Any] = {"app": {"env": "prod"}, "database": {"dsn": dsn}, "queue": {"listen": False}}
    queue = MemoryQueue() if elsewhere else None
    with JFast(load_config(environ={}, overrides=overrides), tasks=tasks, queue=queue, bus=RecordingBus()) as jf:
        with jf.session() as session:
            jf.outbox.enqueue(session, Job(task="note"))
            jf.outbox.enqueue(session, Job(task="keyed"))
            jf.outbox.publish(session, "orders", Event(type="placed"))
        while jf.relaying.run_once():
            pass
        jf.start_worker(threads=1, drain=True).join()
        jf.queue.stats()
    return len(ran)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_rights_of_the_guide_are_enough(app_dsn: str, elsewhere: bool) -> None:
    assert everything(app_dsn, elsewhere=elsewhere) == 2


@pytest.mark.parametrize(
    "missing", ["USAGE ON SEQUENCE jfast_outbox_seq", "INSERT ON jfast_outbox", "INSERT ON jfast_jobs"]
)
def test_a_missing_right_is_named_with_the_statement_that_gives_it(
    app_dsn: str, admin: psycopg.Connection, missing: str
) -> None:
    name = urlsplit(app_dsn).username
    admin.execute(f"REVOKE {missing} FROM {name}, PUBLIC".encode())
    with pytest.raises(SchemaError, match="permission denied") as caught:
        everything(app_dsn, elsewhere="outbox" in missing)
    grant = str(caught.value).partition('run "')[2].partition('"')[0]
    admin.execute(f"{grant} {name}".encode())
    assert everything(app_dsn, elsewhere="outbox" in missing) >= 1


def test_a_right_that_was_taken_away_costs_a_job_no_attempt(app_dsn: str, admin: psycopg.Connection) -> None:
    revoke = f"REVOKE INSERT ON jfast_inbox FROM {urlsplit(app_dsn).username}"
    admin.execute(revoke.encode())
    database = Database(app_dsn)
    bench = Bench(SqlQueue(database, listen=False), database)
    bench.tasks.task("keyed", idempotent_on=lambda payload: 1)(lambda payload: None)
    bench.enqueue("keyed", id="x", max_attempts=1)
    with bench.running(threads=1):
        eventually(lambda: "GRANT SELECT, INSERT" in str(bench.queue.find("x").job.error))
    assert bench.queue.find("x").job.attempts == 0
    bench.queue.close()


def test_an_upgrade_by_somebody_who_does_not_own_the_tables_says_so(app_dsn: str, admin: psycopg.Connection) -> None:
    admin.execute("DROP INDEX jfast_jobs_due_idx")
    admin.execute("UPDATE jfast_schema SET version = 0")
    database = Database(app_dsn)
    with pytest.raises(SchemaError, match='"jfast-sync db upgrade" is for the owner of the tables'):
        schema.upgrade(database)
    database.dispose()


def test_an_upgrade_by_somebody_who_may_make_no_tables_says_so(role: Roles, admin: psycopg.Connection) -> None:
    dsn = role("new")
    name = urlsplit(dsn).username
    admin.execute(f"REVOKE ALL ON SCHEMA public FROM {name}, PUBLIC".encode())
    admin.execute(f"GRANT USAGE ON SCHEMA public TO {name}".encode())
    database = Database(dsn)
    with pytest.raises(SchemaError, match='run "GRANT CREATE ON SCHEMA public TO" this role'):
        schema.upgrade(database)
    database.dispose()
