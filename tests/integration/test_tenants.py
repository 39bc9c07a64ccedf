"""Row-level security: whatever handlers, requests and sessions do, no row of another tenant is ever visible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from flask import Flask
from psycopg import sql
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from jfast_sync import JFast, Job, current_tenant_id
from jfast_sync.app import load
from jfast_sync.config import load_config
from jfast_sync.context import Origin, bind
from jfast_sync.errors import ConfigError, SchemaError
from jfast_sync.flask import JFast as FlaskJFast
from jfast_sync.flask import get_session
from jfast_sync.ports import DeadFilter
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.sql import schema, tenants
from jfast_sync.sql.engine import Database
from jfast_sync.tasks import TaskSession
from jfast_sync.tasks.registry import Registry, isolated
from jfast_sync.testing import drain
from tests.docs.pages import blocks
from tests.integration.cli import TASKS, Project
from tests.servers import PostgresServer
from tests.worker_harness import Bench

GUIDE = "docs/guides/tenants.md"
TABLE, NOBODY_COUNTS, ROLE, RIGHTS = (block.text for block in blocks(GUIDE) if block.language == "sql")
TENANTS = ("a", "b", None)
ROWS = {"a": 2, "b": 3}


@pytest.fixture
def admin(postgres_server: PostgresServer, postgres_dsn: str) -> Iterator[psycopg.Connection]:
    """A superuser's connection to the test's database."""
    with psycopg.connect(postgres_server.admin_dsn(_name(postgres_dsn)), autocommit=True) as connection:
        yield connection


@pytest.fixture
def notes(postgres_dsn: str, admin: psycopg.Connection) -> str:
    """A database with the guide's table, owned by the role of its DSN, with rows of two tenants."""
    with psycopg.connect(postgres_dsn) as owner:
        owner.execute(TABLE.encode())
    for tenant, count in ROWS.items():
        for _ in range(count):
            admin.execute("INSERT INTO notes (tenant_id, words) VALUES (%s, 'before')", [tenant])
    return postgres_dsn


@pytest.fixture(params=["our engine", "the user's engine"])
def database(request: pytest.FixtureRequest, notes: str) -> Iterator[Database]:
    """One connection for sessions: whatever stays on it meets whoever comes next."""
    if request.param == "our engine":
        database = Database(notes, pool_size=1, rls=True)
    else:
        url = notes.replace("postgresql://", "postgresql+psycopg://")
        database = Database(create_engine(url, pool_size=1, max_overflow=0), rls=True)
    schema.upgrade(database)
    yield database
    database.engine.dispose()
    database.dispose()


@pytest.fixture(params=["in the same database", "elsewhere"])
def bench(request: pytest.FixtureRequest, database: Database) -> Iterator[Bench]:
    queue = SqlQueue(database) if request.param == "in the same database" else MemoryQueue()
    yield Bench(queue, database)
    queue.close()


def _name(dsn: str) -> str:
    return urlsplit(dsn).path.lstrip("/")


def visible(session: Session) -> dict[str, int]:
    """What a session sees of the table: rows by tenant."""
    rows = session.execute(text("SELECT tenant_id, count(*) FROM notes GROUP BY tenant_id"))
    return {row[0]: row[1] for row in rows}


def own(tenant: str | None) -> set[str]:
    return set() if tenant is None else {tenant}


def write(session: Session) -> None:
    session.execute(text("INSERT INTO notes (words) VALUES ('written')"))


# --- handlers --------------------------------------------------------------------------------------------------


class Handlers:
    """Each does what could lose the tenant, and looks before and after."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None, dict[str, int]]] = []

    def look(self, session: Session, job: Job) -> None:
        self.seen.append((job.task, job.tenant_id, visible(session)))

    def commits(self, session: TaskSession, job: Job) -> None:
        self.look(session, job)
        session.commit()
        self.look(session, job)
        session.commit()
        self.look(session, job)

    def rolls_back(self, session: TaskSession, job: Job) -> None:
        self.look(session, job)
        session.rollback()
        self.look(session, job)
        connection = session.connection()
        session.rollback()
        seen = connection.execute(text("SELECT tenant_id, count(*) FROM notes GROUP BY tenant_id"))
        self.seen.append((job.task, job.tenant_id, {row[0]: row[1] for row in seen}))

    def raises(self, session: TaskSession, job: Job) -> None:
        self.look(session, job)
        raise ValueError("no")

    def fails_in_sql(self, session: TaskSession, job: Job) -> None:
        self.look(session, job)
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT 1 / 0"))
        session.rollback()
        self.look(session, job)

    def savepoints(self, session: TaskSession, job: Job) -> None:
        with session.begin_nested():
            self.look(session, job)
        nested = session.begin_nested()
        nested.rollback()
        self.look(session, job)

    def times_out(self, session: TaskSession, job: Job) -> None:
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT pg_sleep(30)"))
        session.rollback()
        self.look(session, job)

    def is_another(self, session: TaskSession, job: Job) -> None:
        """Sets the tenant for the whole connection, as no handler should."""
        session.execute(text("SELECT set_config('jfast.tenant_id', 'b', false)"))
        session.commit()
        self.look(session, job)
        session.execute(text("SELECT set_config('jfast.tenant_id', 'b', false)"))


NAMES = ("commits", "rolls_back", "raises", "fails_in_sql", "savepoints", "is_another")


def test_no_handler_ever_sees_a_row_of_another_tenant(bench: Bench) -> None:
    handlers = Handlers()
    for name in NAMES:
        bench.tasks.task(name, max_attempts=1)(getattr(handlers, name))
    bench.tasks.task("times_out", max_attempts=1, timeout=0.2)(handlers.times_out)
    for name in (*NAMES, "times_out"):
        for tenant in TENANTS:
            bench.enqueue(name, tenant_id=tenant, max_attempts=1)
            bench.enqueue("commits", tenant_id=tenant, max_attempts=1)  # the one that comes after it
    bench.drain(threads=1, patience=20.0)
    dead = [letter.job for letter in bench.queue.dead(DeadFilter(), limit=100)]
    assert {(job.task, job.error) for job in dead} == {
        ("raises", "ValueError: no"),
        ("times_out", "TimeoutError: ran longer than 0.2 s"),
    }
    assert {name for name, _, _ in handlers.seen} == {*NAMES, "times_out"}
    for name, tenant, seen in handlers.seen:
        assert seen == {key: ROWS[key] for key in own(tenant)}, (name, tenant)


def test_what_handlers_write_is_their_tenants(bench: Bench, admin: psycopg.Connection) -> None:
    @bench.tasks.task("writes")
    def writes(session: TaskSession) -> None:
        write(session)
        session.commit()
        write(session)

    for tenant in TENANTS:
        bench.enqueue("writes", tenant_id=tenant, max_attempts=1)
    bench.drain(threads=1)
    found = admin.execute("SELECT tenant_id, count(*) FROM notes WHERE words = 'written' GROUP BY 1 ORDER BY 1")
    assert found.fetchall() == [("a", 2), ("b", 2)]
    assert bench.stats().dead == 1, "the job of nobody could write nothing"


def test_a_row_of_another_tenant_cannot_be_written(database: Database) -> None:
    attempt = database.attempt("a")
    try:
        with pytest.raises(DBAPIError, match="row-level security"):
            attempt.session.execute(text("INSERT INTO notes (tenant_id, words) VALUES ('b', 'forged')"))
    finally:
        attempt.close()


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_pool_gets_connections_back_that_are_nobodys(database: Database, end: str) -> None:
    attempt = database.attempt("a")
    assert visible(attempt.session) == {"a": 2}
    getattr(attempt, end)()
    attempt.close()
    with bind(Origin(tenant_id="b")), database.session() as session:
        assert visible(session) == {"b": 3}
    with database.engine.connect() as connection:
        assert not connection.execute(text("SELECT current_setting('jfast.tenant_id', true)")).scalar()
        assert connection.execute(text("SELECT count(*) FROM notes")).scalar() == 0


# --- sessions and requests -------------------------------------------------------------------------------------


def test_a_session_is_its_tenants_over_all_its_transactions(database: Database) -> None:
    for tenant in (*TENANTS, *TENANTS):
        with bind(Origin(tenant_id=tenant)), database.session() as session:
            for end in (session.commit, session.rollback, session.commit):
                assert set(visible(session)) == own(tenant)
                end()
            with bind(Origin(tenant_id="b")):
                assert set(visible(session)) == own(tenant), "it stays with who opened it"


def test_a_session_that_raises_leaves_nothing(database: Database) -> None:
    with pytest.raises(ValueError), bind(Origin(tenant_id="a")), database.session() as session:
        assert set(visible(session)) == {"a"}
        raise ValueError
    with database.session() as session:
        assert visible(session) == {}


def test_a_job_without_a_tenant_finds_what_a_policy_lets_it(database: Database, notes: str) -> None:
    with psycopg.connect(notes) as owner:
        owner.execute(NOBODY_COUNTS.encode())
    for tenant, expected in ((None, ROWS), ("a", {"a": 2})):
        with bind(Origin(tenant_id=tenant)), database.session() as session:
            assert visible(session) == expected


def test_nothing_is_set_where_it_is_off(notes: str) -> None:
    database = Database(notes)
    with bind(Origin(tenant_id="a")), database.session() as session:
        assert session.execute(text("SELECT current_setting('jfast.tenant_id', true)")).scalar() is None
    database.dispose()


def test_requests_see_their_tenants_rows_however_often_they_commit(notes: str) -> None:
    app = Flask("shop")
    overrides: dict[str, dict[str, object]] = {
        "database": {"dsn": notes, "rls": True, "pool_size": 1},
        "queue": {"listen": False},
    }
    FlaskJFast(app, overrides=overrides, tenant=lambda request: request.headers.get("X-Test-Tenant"))

    @app.get("/<ending>")
    def view(ending: str) -> list[dict[str, int]]:
        session = get_session()
        seen = []
        for _ in range(3):
            seen.append(visible(session))
            getattr(session, ending)()
        return [*seen, visible(session)]

    @app.get("/raise")
    def fail() -> str:
        assert visible(get_session())
        raise ValueError

    client = app.test_client()
    try:
        for ending in ("commit", "rollback", "raise", "commit"):
            for tenant in TENANTS:
                answer = client.get(f"/{ending}", headers={"X-Test-Tenant": tenant} if tenant else {})
                if ending == "raise":
                    assert answer.status_code == 500
                else:
                    assert answer.json == [{key: ROWS[key] for key in own(tenant)}] * 4
    finally:
        app.extensions["jfast"].close()


@pytest.mark.parametrize("how", ["callback", "set_tenant"])
def test_a_session_that_looked_the_tenant_up_goes_on_as_it(notes: str, how: str) -> None:
    app = Flask("shop")
    overrides: dict[str, dict[str, object]] = {"database": {"dsn": notes, "rls": True}, "queue": {"listen": False}}

    def look_up(_request: object) -> str:
        assert visible(get_session()) == {}
        return "a"

    jf = FlaskJFast(app, overrides=overrides, tenant=look_up if how == "callback" else None)

    @app.before_request
    def known_later() -> None:
        if how == "set_tenant":
            jf.set_tenant(look_up(None))

    @app.get("/")
    def view() -> list[dict[str, int]]:
        before = visible(get_session())
        get_session().rollback()
        return [before, visible(get_session())]

    assert app.test_client().get("/").json == [{"a": 2}, {"a": 2}]
    app.extensions["jfast"].close()


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str]


@pytest.fixture(params=["our engine", "the user's engine"])
def switching(request: pytest.FixtureRequest, notes: str) -> Iterator[FlaskJFast]:
    """An app whose requests change their tenant with `set_tenant`."""
    engine = create_engine(notes.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=0)
    overrides: dict[str, dict[str, object]] = {"database": {"dsn": notes, "rls": True}, "queue": {"listen": False}}
    app = Flask("shop")
    jf = FlaskJFast(app, overrides=overrides, engine=engine if request.param != "our engine" else None)
    yield jf
    jf.core.close()
    engine.dispose()


def requests_of(jf: FlaskJFast, view: Callable[[], Any]) -> int:
    """Answer one request with a view; returns the status."""
    (app,) = jf._apps  # which the fixture keeps
    app.add_url_rule("/", view_func=view)
    return app.test_client().get("/").status_code


GOING_BACK: dict[str, Callable[[Session, Callable[[], None]], None]] = {}


def going_back(way: Callable[[Session, Callable[[], None]], None]) -> None:
    GOING_BACK[way.__name__] = way


@going_back
def the_sessions(session: Session, change: Callable[[], None]) -> None:
    nested = session.begin_nested()
    change()
    nested.rollback()


@going_back
def the_connections(session: Session, change: Callable[[], None]) -> None:
    nested = session.connection().begin_nested()
    change()
    nested.rollback()


@going_back
def as_text(session: Session, change: Callable[[], None]) -> None:
    session.execute(text("SAVEPOINT mine"))
    change()
    session.execute(text("/* back */ rollback work to savepoint mine"))


@pytest.mark.parametrize("way", GOING_BACK)
def test_a_savepoint_does_not_bring_the_tenant_before_back(switching: FlaskJFast, way: str) -> None:
    def view() -> str:
        switching.set_tenant("a")
        assert visible(get_session()) == {"a": 2}
        GOING_BACK[way](get_session(), lambda: switching.set_tenant("b"))
        assert current_tenant_id() == "b"
        assert visible(get_session()) == {"b": 3}
        return ""

    assert requests_of(switching, view) == 200


def test_no_loaded_row_crosses_a_change_of_the_tenant(switching: FlaskJFast, admin: psycopg.Connection) -> None:
    (number,) = admin.execute("SELECT min(id) FROM notes WHERE tenant_id = 'a'").fetchone() or (0,)

    def view() -> str:
        switching.set_tenant("a")
        kept = get_session().get(Note, number)
        assert kept is not None
        switching.set_tenant("b")
        assert get_session().get(Note, number) is None
        switching.set_tenant("a")
        assert get_session().get(Note, number) is not None
        return ""

    assert requests_of(switching, view) == 200


def test_what_was_added_is_written_as_who_added_it(switching: FlaskJFast, admin: psycopg.Connection) -> None:
    def view() -> str:
        switching.set_tenant("a")
        get_session().add(Note(words="added"))
        switching.set_tenant("b")
        return ""

    assert requests_of(switching, view) == 200
    assert admin.execute("SELECT tenant_id FROM notes WHERE words = 'added'").fetchall() == [("a",)]


# --- roles -----------------------------------------------------------------------------------------------------

Roles = Callable[..., str]


@pytest.fixture
def role(postgres_server: PostgresServer, notes: str, admin: psycopg.Connection) -> Iterator[Roles]:
    """Make roles of this test's own; returns a DSN that signs in as one."""
    made: list[sql.Identifier] = []

    def make(name: str, options: str = "") -> str:
        full = f"{_name(notes)}_{name}"
        made.append(sql.Identifier(full))
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw' ").format(made[-1]) + sql.SQL(options))
        admin.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(made[-1]))
        return f"postgresql://{full}:pw@{postgres_server.host}:{postgres_server.port}/{_name(notes)}"

    yield make
    for identifier in made:
        admin.execute(sql.SQL("DROP OWNED BY {}").format(identifier))
        admin.execute(sql.SQL("DROP ROLE {}").format(identifier))


def app_on(dsn: str, env: str = "prod") -> JFast:
    config = load_config(
        environ={}, overrides={"app": {"env": env}, "database": {"dsn": dsn, "rls": True}, "queue": {"listen": False}}
    )
    return JFast(config, tasks=Registry())


def start(dsn: str, env: str) -> None:
    with app_on(dsn, env) as app:
        if env == "prod":
            schema.upgrade(app.database)  # type: ignore[arg-type]
        with app.session() as session:
            session.execute(text("SELECT 1"))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "jfast_sync.sql.tenants")
    return caplog


def test_a_superuser_is_refused_in_prod_and_warned_of_elsewhere(
    postgres_server: PostgresServer, notes: str, warnings: pytest.LogCaptureFixture
) -> None:
    superuser = postgres_server.admin_dsn(_name(notes))
    with pytest.raises(ConfigError, match=r"the role '\w+' is a superuser.*CREATE ROLE app LOGIN NOSUPERUSER"):
        start(superuser, "prod")
    assert warnings.messages == []
    start(superuser, "local")
    assert len(warnings.messages) == 1
    assert warnings.messages[0].endswith("(refused in prod)")


def test_a_role_that_bypasses_is_refused(role: Roles) -> None:
    with pytest.raises(ConfigError, match=r"_above' is exempt from it \(BYPASSRLS\)"):
        start(role("above", "BYPASSRLS"), "prod")


def test_an_owner_without_force_is_refused_and_the_statement_helps(notes: str) -> None:
    with psycopg.connect(notes, autocommit=True) as owner:
        owner.execute("ALTER TABLE notes NO FORCE ROW LEVEL SECURITY")
        with pytest.raises(SchemaError, match="the role 'jfast' owns notes") as caught:
            start(notes, "prod")
        statement = str(caught.value).partition("Write ")[2].partition(", or")[0]
        owner.execute(statement.encode())
    start(notes, "prod")


def test_a_member_of_the_owner_is_one(role: Roles, notes: str, admin: psycopg.Connection) -> None:
    admin.execute("ALTER TABLE notes NO FORCE ROW LEVEL SECURITY")
    member = role("member")
    admin.execute(sql.SQL("GRANT jfast TO {}").format(sql.Identifier(f"{_name(notes)}_member")))
    with pytest.raises(SchemaError, match="_member' owns notes"):
        start(member, "prod")


def test_many_tables_are_named_shortly(notes: str) -> None:
    with psycopg.connect(notes) as owner:
        for number in range(7):
            owner.execute(f"CREATE TABLE t{number} (n integer)".encode())
            owner.execute(f"ALTER TABLE t{number} ENABLE ROW LEVEL SECURITY".encode())
    with pytest.raises(SchemaError, match="owns t0, t1, t2, t3, t4 and 2 more, and"):
        start(notes, "prod")


def test_an_ordinary_role_is_fine(notes: str, warnings: pytest.LogCaptureFixture) -> None:
    start(notes, "prod")
    start(notes, "local")
    assert warnings.messages == []


def test_a_database_without_any_policy_is_warned_of(postgres_dsn: str, warnings: pytest.LogCaptureFixture) -> None:
    start(postgres_dsn, "prod")
    assert [message.partition("but ")[2][:32] for message in warnings.messages] == ["no table has row-level security:"]


def test_sqlite_is_refused_also_as_an_engine_of_ones_own(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    config = load_config(environ={}, overrides={"database": {"rls": True}})
    with pytest.raises(ConfigError, match="rls = true needs PostgreSQL, and this database is sqlite"):
        JFast(config, engine=engine)
    engine.dispose()


def test_the_command_refuses_with_the_code_that_the_guide_says(
    postgres_server: PostgresServer, notes: str, tmp_path: Path
) -> None:
    project = Project(tmp_path, {"JFAST_DB_DSN": postgres_server.admin_dsn(_name(notes))})
    project.config('[app]\nenv = "prod"\n\n[plugin.database]\nrls = true\n')
    project.tasks(TASKS)
    project.ok("db", "upgrade")
    refused = project.run("worker", "--drain")
    assert refused.code == 2, refused.err
    assert "is a superuser" in refused.err
    found = _tenants_of(project)
    assert found["status"] == "fail"
    assert "is a superuser" in found["detail"]


def test_the_doctor_is_content_where_policies_hold(notes: str, tmp_path: Path) -> None:
    project = Project(tmp_path, {"JFAST_DB_DSN": notes})
    project.config('[app]\nenv = "prod"\n\n[plugin.database]\nrls = true\n')
    project.tasks(TASKS)
    project.ok("db", "upgrade")
    assert {"name": "tenants", "status": "ok"}.items() <= _tenants_of(project).items()
    project.ok("worker", "--drain")
    with psycopg.connect(notes) as owner:
        owner.execute("ALTER TABLE notes NO FORCE ROW LEVEL SECURITY")
    assert project.run("worker", "--drain").code == 4
    assert _tenants_of(project)["status"] == "fail"


def _tenants_of(project: Project) -> dict[str, Any]:
    checks: list[dict[str, Any]] = project.run("doctor", "--json").json["checks"]
    return next(check for check in checks if check["name"] == "tenants")


# --- the guide -------------------------------------------------------------------------------------------------


def test_the_guide_works_as_written(
    notes: str, role: Roles, admin: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table, its role that owns nothing, and its handlers."""
    name = f"{_name(notes)}_app"
    dsn = role("app")
    admin.execute(ROLE.replace("CREATE ROLE notes_app LOGIN", f"ALTER ROLE {name}").replace("notes_app", name).encode())
    owner = Database(notes)
    schema.upgrade(owner)
    owner.dispose()
    admin.execute(RIGHTS.replace("notes_app", name).encode())
    for block in blocks(GUIDE):
        if block.file is not None:
            file = tmp_path / block.file
            file.parent.mkdir(parents=True)
            file.write_text(block.text)
    (tmp_path / "jfast.toml").write_text("")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    overrides: dict[str, Any] = {
        "app": {"env": "prod"},
        "database": {"dsn": dsn, "rls": True},
        "queue": {"listen": False},
    }
    with isolated(), load(None, config_path=tmp_path, overrides=overrides) as jf:
        jf.queue.enqueue(Job(task="notes.clear", tenant_id="b"))
        jf.queue.enqueue(Job(task="notes.write", payload={"words": "mine"}, tenant_id="a"))
        drain(jf)
    assert admin.execute("SELECT tenant_id, words FROM notes ORDER BY id").fetchall() == [
        ("a", "before"),
        ("a", "before"),
        ("a", "mine"),
    ]


def test_every_statement_of_the_guide_is_run_here() -> None:
    assert tenants.SETTING in TABLE
    assert tenants.SETTING in NOBODY_COUNTS
    assert "CREATE ROLE" in ROLE
    assert "ON SEQUENCE" in RIGHTS
