"""The HTTP side on real databases: what a request wrote and enqueued exists if and only if it was answered well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from flask import Flask, Response, abort
from sqlalchemy import text

from jfast_sync import Job, get_context
from jfast_sync.core import JFast as Core
from jfast_sync.flask import JFast, get_session
from tests.servers import PostgresServer, Proxy
from tests.waiting import eventually


def app_on(dsn: str) -> tuple[Flask, JFast]:
    app = Flask("shop")
    jf = JFast(app, overrides={"database": {"dsn": dsn}})
    return app, jf


@dataclass
class Shop:
    """A Flask app with a table of its own; every view writes an order and enqueues a job in the request's session."""

    app: Flask
    jf: JFast

    def orders(self) -> int:
        with self.jf.core.session() as session:
            return int(session.execute(text("SELECT count(*) FROM orders")).scalar_one())

    def jobs(self) -> int:
        return self.jf.queue.stats().ready


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def shop(dsn: str) -> Iterator[Shop]:
    app, jf = app_on(dsn)
    with jf.core.session() as session:
        session.execute(text("CREATE TABLE orders (id int PRIMARY KEY)"))

    def order(number: int) -> None:
        session = get_session()
        session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        jf.outbox.enqueue(session, Job(task="order.confirm", payload={"order": number}))

    @app.post("/orders/<int:number>")
    def fine(number: int) -> tuple[str, int]:
        order(number)
        return "ordered", 201

    @app.post("/raising/<int:number>")
    def raising(number: int) -> str:
        order(number)
        raise ZeroDivisionError

    @app.post("/aborting/<int:number>")
    def aborting(number: int) -> str:
        order(number)
        abort(409)

    @app.post("/unpaid/<int:number>")
    def unpaid(number: int) -> Response:
        order(number)
        return Response("unpaid", status=402)

    yield Shop(app, jf)
    jf.core.close()


def test_what_a_request_wrote_and_enqueued_is_there_when_it_is_answered(shop: Shop) -> None:
    assert shop.app.test_client().post("/orders/1").status_code == 201
    assert (shop.orders(), shop.jobs()) == (1, 1)


@pytest.mark.parametrize(("view", "status"), [("raising", 500), ("aborting", 409), ("unpaid", 402)])
def test_neither_is_there_when_the_answer_is_an_error(shop: Shop, view: str, status: int) -> None:
    assert shop.app.test_client().post(f"/{view}/1").status_code == status
    assert (shop.orders(), shop.jobs()) == (0, 0)


def test_a_commit_that_the_database_refuses_is_a_500_and_leaves_nothing(postgres_dsn: str) -> None:
    app, jf = app_on(postgres_dsn)
    try:
        with jf.core.session() as session:
            session.execute(text("CREATE TABLE orders (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
            session.execute(text("INSERT INTO orders VALUES (1)"))

        @app.post("/")
        def twice() -> str:
            get_session().execute(text("INSERT INTO orders VALUES (1)"))
            jf.outbox.enqueue(get_session(), Job(task="order.confirm"))
            return "ordered"

        response = app.test_client().post("/")
        assert (response.status_code, response.content_type) == (500, "application/problem+json")
        assert jf.queue.stats().ready == 0
    finally:
        jf.core.close()


def test_a_connection_cut_before_the_commit_is_a_500_and_leaves_nothing(
    postgres_dsn: str, postgres_server: PostgresServer, proxy: Callable[[int], Proxy]
) -> None:
    line = proxy(postgres_server.port)
    app, jf = app_on(line.dsn(postgres_dsn))
    try:
        jf.core.setup()

        @app.post("/")
        def view() -> str:
            jf.outbox.enqueue(get_session(), Job(task="order.confirm"))
            line.cut()
            return "ordered"

        response = app.test_client().post("/")
        assert (response.status_code, response.content_type) == (500, "application/problem+json")
        assert jf.queue.stats().ready == 0
    finally:
        jf.core.close()


def test_a_job_of_a_request_carries_its_origin(shop: Shop) -> None:
    shop.app.test_client().post("/orders/1", headers={"X-Request-ID": "req-1"})
    rows = shop.jf.queue.inspect.jobs()
    assert [row.job.request_id for row in rows] == ["req-1"]


def test_a_view_and_a_script_see_the_same_context(shop: Shop) -> None:
    seen: list[Core] = []

    @shop.app.get("/context")
    def view() -> str:
        seen.append(get_context())
        return ""

    shop.app.test_client().get("/context")
    assert seen == [shop.jf.core]


def test_ready_names_what_answers(shop: Shop) -> None:
    response = shop.app.test_client().get("/ready")
    assert response.status_code == 200
    assert response.json is not None
    assert {name: check["status"] for name, check in response.json["checks"].items()} == {
        "database": "ok",
        "outbox": "ok",
        "queue": "ok",
    }


@pytest.mark.parametrize("env", ["local", "prod"])
def test_ready_answers_within_three_seconds_of_a_server_that_never_replies(
    env: str, postgres_dsn: str, postgres_server: PostgresServer, proxy: Callable[[int], Proxy]
) -> None:
    line = proxy(postgres_server.port)
    app, jf = app_on(postgres_dsn)
    jf.core.setup()
    jf.core.close()

    app = Flask("shop")
    jf = JFast(app, overrides={"app": {"env": env}, "database": {"dsn": line.dsn(postgres_dsn)}})
    client = app.test_client()
    password = str(jf.core.database.engine.url.password) if jf.core.database is not None else ""
    try:
        assert client.get("/ready").status_code == 200
        line.stall()
        before = {thread.name for thread in threading.enumerate()}
        for _ in range(2):
            began = time.monotonic()
            response = client.get("/ready")
            assert time.monotonic() - began < 3
            assert response.status_code == 503
            assert response.json is not None
            assert response.json["status"] == "unavailable"
            assert {name for name, check in response.json["checks"].items() if check["critical"]} == {
                "database",
                "queue",
            }
            assert not password or f":{password}@" not in response.text
        asking = sorted({thread.name for thread in threading.enumerate()} - before)
        assert asking == ["jfast-ask-database", "jfast-ask-outbox", "jfast-ask-queue"]
        assert threading.active_count() == len(before) + 3
        line.restore()
        eventually(lambda: client.get("/ready").status_code, 15, until=lambda status: status == 200, what="200 again")
    finally:
        jf.core.close()


def test_ready_says_that_the_server_is_away_and_that_it_is_back(
    killable_postgres: PostgresServer, killable_postgres_dsn: str
) -> None:
    app, jf = app_on(killable_postgres_dsn)
    client = app.test_client()
    try:
        assert client.get("/ready").status_code == 200
        killable_postgres.kill()
        away = client.get("/ready")
        assert away.status_code == 503
        assert away.json is not None
        assert away.json["checks"]["database"]["detail"].startswith("UnavailableError: ")
        stats = client.get("/queue/stats")
        assert (stats.status_code, stats.content_type) == (503, "application/problem+json")
        killable_postgres.start()
        eventually(lambda: client.get("/ready").status_code, until=lambda status: status == 200, what="200 again")
    finally:
        jf.core.close()
