"""What the answer says about the commit is so: of a request's session, and of ``jf.session()``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from flask import Flask, request_finished
from flask import session as cookie
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError
from sqlalchemy.orm import Session

from jfast_sync import Job
from jfast_sync.errors import UnavailableError, UnsupportedError
from jfast_sync.flask import JFast, get_session
from jfast_sync.sql import dsn as forms
from tests.servers import PostgresServer, Proxy

Apps = Callable[..., tuple[Flask, JFast]]


@pytest.fixture(params=["our engine", "the user's engine"])
def apps(request: pytest.FixtureRequest) -> Iterator[Apps]:
    """Make an app on a database, with a table `t`; on an engine of ours and on one of the user's."""
    made: list[JFast] = []
    engines = []

    def make(dsn: str) -> tuple[Flask, JFast]:
        engine = None
        if request.param != "our engine":
            engine = create_engine(forms.parse(dsn))
            engines.append(engine)
        app = Flask(f"shop{len(made)}")
        app.secret_key = "for the cookie"
        jf = JFast(app, overrides={"database": {"dsn": dsn}, "queue": {"listen": False}}, engine=engine)
        with jf.session() as session:
            session.execute(text("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)"))
        made.append(jf)
        return app, jf

    yield make
    for jf in made:
        jf.core.close()
    for engine in engines:
        engine.dispose()


def write(jf: JFast, session: Session, number: int = 1) -> None:
    session.execute(text("INSERT INTO t VALUES (:id)"), {"id": number})
    jf.outbox.enqueue(session, Job(task="t.done"))


def found(jf: JFast) -> tuple[int, int]:
    with jf.session() as session:
        return int(session.execute(text("SELECT count(*) FROM t")).scalar_one()), jf.queue.stats().ready


# --- a transaction that PostgreSQL has given up ------------------------------------------------------------------


def swallow(jf: JFast, session: Session) -> None:
    write(jf, session, 2)
    with suppress(IntegrityError):  # there already: fine
        session.execute(text("INSERT INTO t VALUES (1)"))


def test_a_swallowed_error_is_no_201_for_what_postgresql_rolls_back(postgres_dsn: str, apps: Apps) -> None:
    app, jf = apps(postgres_dsn)
    with jf.session() as session:
        session.execute(text("INSERT INTO t VALUES (1)"))

    @app.post("/")
    def view() -> tuple[str, int]:
        swallow(jf, get_session())
        return "ok", 201

    response = app.test_client().post("/")
    assert response.status_code == 500
    assert "begin_nested" in response.text and "nothing was written" in response.text
    assert found(jf) == (1, 0)


def test_a_swallowed_error_is_raised_at_the_end_of_a_session(postgres_dsn: str, apps: Apps) -> None:
    _, jf = apps(postgres_dsn)
    with jf.session() as session:
        session.execute(text("INSERT INTO t VALUES (1)"))
    with pytest.raises(PendingRollbackError, match="begin_nested"), jf.session() as session:
        swallow(jf, session)
    with Session(jf.core.database.engine) as session:  # type: ignore[union-attr]  # one of the user's own
        swallow(jf, session)
        with pytest.raises(PendingRollbackError, match="begin_nested"):
            session.commit()
    assert found(jf) == (1, 0)


def test_what_fails_in_a_savepoint_costs_only_that(postgres_dsn: str, apps: Apps) -> None:
    _, jf = apps(postgres_dsn)
    with jf.session() as session:
        session.execute(text("INSERT INTO t VALUES (1)"))
    with jf.session() as session:
        write(jf, session, 2)
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(text("INSERT INTO t VALUES (1)"))
    assert found(jf) == (2, 1)


# --- what still runs after the view ------------------------------------------------------------------------------


def test_a_cookie_that_cannot_be_written_leaves_nothing_behind(dsn: str, apps: Apps) -> None:
    app, jf = apps(dsn)

    @app.post("/")
    def view() -> tuple[str, int]:
        write(jf, get_session())
        cookie["seen"] = object  # no JSON
        return "ok", 201

    assert app.test_client().post("/").status_code == 500
    assert found(jf) == (0, 0)


@pytest.mark.parametrize("friendly", [False, True])
def test_a_receiver_of_request_finished_that_fails_leaves_nothing_behind(dsn: str, apps: Apps, friendly: bool) -> None:
    app, jf = apps(dsn)
    if friendly:
        app.register_error_handler(500, lambda error: ("never mind", 200))

    @app.post("/")
    def view() -> tuple[str, int]:
        write(jf, get_session())
        return "ok", 201

    def fail(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError

    with request_finished.connected_to(fail, app):
        assert app.test_client().post("/").status_code == (200 if friendly else 500)
    assert found(jf) == (0, 0)


# --- after the commit, and between it and its reply --------------------------------------------------------------


def test_a_listener_that_fails_after_the_commit_does_not_change_the_answer(
    dsn: str, apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    app, jf = apps(dsn)

    def fail(_session: Session) -> None:
        raise ZeroDivisionError("in the listener")

    @app.post("/")
    def view() -> tuple[str, int]:
        write(jf, get_session())
        event.listen(get_session(), "after_commit", fail)
        return "ok", 201

    with caplog.at_level(logging.ERROR):
        assert app.test_client().post("/").status_code == 201
        with jf.session() as session:
            event.listen(session, "after_commit", fail)
            write(jf, session, 2)
    assert found(jf) == (2, 2)
    assert caplog.text.count("a listener failed after that") == 2


def test_a_lost_reply_to_the_commit_is_said_to_be_one(
    postgres_dsn: str, apps: Apps, postgres_server: PostgresServer, proxy: Callable[[int], Proxy]
) -> None:
    line = proxy(postgres_server.port)
    app, jf = apps(line.dsn(postgres_dsn))

    @app.post("/")
    def view() -> tuple[str, int]:
        write(jf, get_session())
        line.swallow_next_reply(b"COMMIT")
        return "ok", 201

    response = app.test_client().post("/")
    assert response.status_code == 500
    assert response.json is not None
    assert response.json["type"].endswith(":commit-unknown")
    assert "not known" in response.json["detail"] and "nothing was written" not in response.json["detail"]
    with pytest.raises(DBAPIError) as caught, jf.session() as session:
        write(jf, session, 2)
        line.swallow_next_reply(b"COMMIT")
    assert "not known" in "".join(caught.value.__notes__)
    assert found(jf) == (2, 2)


def test_a_lost_reply_to_the_queues_own_commit_is_said_to_be_one(
    postgres_dsn: str, apps: Apps, postgres_server: PostgresServer, proxy: Callable[[int], Proxy]
) -> None:
    line = proxy(postgres_server.port)
    _, jf = apps(line.dsn(postgres_dsn))
    job = Job(task="t.done")
    assert jf.queue.stats().ready == 0
    line.swallow_next_reply(b"COMMIT")
    with pytest.raises(UnavailableError, match="reply to a commit was lost: it is not known"):
        jf.queue.enqueue(job)
    assert jf.queue.enqueue(job) == job.id
    assert jf.queue.stats().ready == 1


def test_a_refused_commit_gives_its_locks_back(sqlite_dsn: str, apps: Apps) -> None:
    """SQLite keeps the transaction open when a deferred constraint refuses its commit, and the pool does not look."""
    _, jf = apps(sqlite_dsn)
    with jf.session() as session:
        session.execute(text("PRAGMA foreign_keys = ON"))
        session.execute(text("CREATE TABLE child (t int REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)"))
    with pytest.raises(IntegrityError), jf.session() as session:
        session.execute(text("PRAGMA foreign_keys = ON"))
        session.execute(text("INSERT INTO child VALUES (7)"))
    with Session(create_engine(sqlite_dsn, connect_args={"timeout": 0})) as other:
        other.execute(text("INSERT INTO t VALUES (1)"))
        other.commit()
        other.get_bind().engine.dispose()
    assert found(jf) == (1, 0)


# --- past the session --------------------------------------------------------------------------------------------

PAST: dict[str, Callable[[Session], object]] = {
    "COMMIT": lambda session: session.execute(text("COMMIT")),
    "ROLLBACK": lambda session: session.execute(text("ROLLBACK")),
    "END": lambda session: session.connection().exec_driver_sql("/* now */ end"),
    "behind another": lambda session: session.execute(text("SELECT 1; COMMIT")),
    "the connection's": lambda session: session.connection().commit(),
}


@pytest.mark.parametrize("way", PAST)
def test_nobody_ends_a_requests_transaction_past_its_session(dsn: str, apps: Apps, way: str) -> None:
    app, jf = apps(dsn)

    @app.post("/")
    def view() -> tuple[str, int]:
        write(jf, get_session())
        PAST[way](get_session())
        return "no", 409

    response = app.test_client().post("/")
    assert response.status_code == 500
    assert "use session.commit()" in response.text
    with pytest.raises(UnsupportedError, match=r"use session\.commit"), jf.session() as session:
        write(jf, session)
        PAST[way](session)
    assert found(jf) == (0, 0)


@pytest.mark.parametrize("way", PAST)
def test_who_swallows_that_refusal_and_rolls_back_starts_afresh(dsn: str, apps: Apps, way: str) -> None:
    _, jf = apps(dsn)
    with jf.session() as session:
        write(jf, session, 1)
        with suppress(UnsupportedError):
            PAST[way](session)
        session.rollback()
        write(jf, session, 2)
    assert found(jf) == (1, 1)
    with jf.session() as session:
        assert session.execute(text("SELECT id FROM t")).scalar_one() == 2


def test_a_session_goes_on_after_a_refused_commit_and_a_rollback(postgres_dsn: str, apps: Apps) -> None:
    _, jf = apps(postgres_dsn)
    with jf.session() as session:
        session.execute(text("INSERT INTO t VALUES (1)"))
    with jf.session() as session:
        swallow(jf, session)
        with pytest.raises(PendingRollbackError):
            session.commit()
        session.rollback()
        write(jf, session, 3)
    assert found(jf) == (2, 1)


@pytest.mark.parametrize("way", ["rollback", "close"])
def test_a_connection_that_ends_early_is_no_201(dsn: str, apps: Apps, way: str) -> None:
    app, jf = apps(dsn)

    @app.post("/")
    def view() -> tuple[str, int]:
        write(jf, get_session())
        getattr(get_session().connection(), way)()
        return "ok", 201

    assert app.test_client().post("/").status_code == 500
    assert found(jf) == (0, 0)


def test_a_sessions_own_commits_rollbacks_and_savepoints_are_its_holders(dsn: str, apps: Apps) -> None:
    _, jf = apps(dsn)
    with jf.session() as session:
        write(jf, session, 1)
        session.commit()
        write(jf, session, 2)
        session.rollback()
        with session.begin_nested():
            write(jf, session, 3)
        session.begin_nested().rollback()
        session.execute(text("SAVEPOINT mine"))
        session.execute(text("ROLLBACK TO SAVEPOINT mine"))
    assert found(jf) == (2, 2)


# --- SQLite's one writer -----------------------------------------------------------------------------------------


def test_a_second_writer_in_one_thread_is_refused_at_once(sqlite_dsn: str, apps: Apps) -> None:
    """It would wait for itself, for as long as the driver waits for a lock."""
    app, jf = apps(sqlite_dsn)

    @app.post("/<wanted>")
    def view(wanted: str) -> tuple[str, int]:
        get_session().execute(text("INSERT INTO t VALUES (1)"))
        if wanted == "right":
            get_session().rollback()
        with jf.session() as session:
            assert session.execute(text("SELECT count(*) FROM t")).scalar_one() == 0, "reading is no matter"
            session.execute(text("INSERT INTO t VALUES (2)"))
        return "no", 403

    client = app.test_client()
    response = client.post("/wrong")
    assert response.status_code == 500
    assert "would wait for itself" in response.text
    assert found(jf) == (0, 0)
    assert client.post("/right").status_code == 403
    assert found(jf) == (1, 0)


def test_a_write_that_was_refused_its_turn_begins_none_of_its_own(sqlite_dsn: str, apps: Apps) -> None:
    _, jf = apps(sqlite_dsn)
    with suppress(ZeroDivisionError), jf.session() as session:
        with jf.session() as first:
            first.execute(text("INSERT INTO t VALUES (1)"))
            with pytest.raises(UnsupportedError):
                session.execute(text("INSERT INTO t VALUES (2)"))
        session.execute(text("INSERT INTO t VALUES (3)"))
        raise ZeroDivisionError
    assert found(jf) == (1, 0)
