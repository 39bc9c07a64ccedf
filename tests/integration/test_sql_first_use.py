"""Sessions of one's own that are the first to use the tables, which are made then, or asked for in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from jfast_sync import JFast, Job
from jfast_sync.buses.recording import RecordingBus
from jfast_sync.config import load_config
from jfast_sync.errors import SchemaError
from jfast_sync.event import Event
from jfast_sync.inbox import claim_once
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.sql import dsn as forms
from jfast_sync.sql import schema
from jfast_sync.tasks.registry import Registry
from tests.integration.sql_support import dsn

__all__ = ["dsn"]

WAYS: dict[str, Callable[[JFast, Session], object]] = {
    "enqueue": lambda jf, session: jf.outbox.enqueue(session, Job(task="a.b")),
    "publish": lambda jf, session: jf.outbox.publish(session, "orders", Event(type="placed")),
}


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    made = create_engine(forms.parse(dsn))
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE notes (n integer)"))
    yield made
    made.dispose()


def app(dsn: str, *, env: str = "local", queue: Any = None, backend: str = "auto", name: str = "jfast_jobs") -> JFast:
    overrides: dict[str, Any] = {
        "app": {"env": env},
        "database": {"dsn": dsn},
        "queue": {"listen": False, "backend": backend, "name": name},
        "outbox": {"relay": False},
        "cache": {"url": "redis://127.0.0.1:1/0"},
        "plugins": {"enabled": ["database", "queue", "outbox", "cache"]},
    }
    return JFast(load_config(environ={}, overrides=overrides), tasks=Registry(), queue=queue, bus=RecordingBus())


def notes(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM notes")).scalar_one())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_session_of_ones_own_may_be_the_first(dsn: str, engine: Engine, way: str, elsewhere: bool) -> None:
    with app(dsn, queue=MemoryQueue() if elsewhere else None) as jf, Session(engine) as session:
        assert session.execute(text("SELECT count(*) FROM notes")).scalar() == 0
        if engine.dialect.name == "postgresql":
            session.execute(text("INSERT INTO notes VALUES (1)"))
        WAYS[way](jf, session)
        session.commit()
        assert jf.database is not None
        counts = "(SELECT count(*) FROM jfast_jobs) + (SELECT count(*) FROM jfast_outbox)"
        with jf.session() as reading:
            assert reading.execute(text(f"SELECT {counts}")).scalar() == 1


@pytest.mark.parametrize("way", WAYS)
def test_on_sqlite_a_session_that_has_written_is_told_what_to_do(sqlite_dsn: str, way: str) -> None:
    engine = create_engine(sqlite_dsn)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (n integer)"))
    with app(sqlite_dsn) as jf:
        with Session(engine) as session:
            session.execute(text("INSERT INTO notes VALUES (1)"))
            with pytest.raises(SchemaError, match=r"SQLite has one writer: call jf\.setup\(\)"):
                WAYS[way](jf, session)
            session.commit()
        assert notes(engine) == 1
        jf.setup()
        with Session(engine) as session:
            session.execute(text("INSERT INTO notes VALUES (2)"))
            WAYS[way](jf, session)
            session.commit()
    engine.dispose()


@pytest.mark.parametrize("way", WAYS)
def test_in_prod_the_command_is_named_and_the_transaction_goes_on(dsn: str, engine: Engine, way: str) -> None:
    with app(dsn, env="prod") as jf, Session(engine) as session:
        session.execute(text("INSERT INTO notes VALUES (1)"))
        with pytest.raises(SchemaError, match='run "jfast-sync db upgrade"'):
            WAYS[way](jf, session)
        session.commit()
    assert notes(engine) == 1


def test_a_claim_without_the_tables_is_one_sentence(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(SchemaError, match='run "jfast-sync db upgrade"'):
        claim_once(session, "m", consumer="c")


# --- a queue elsewhere has no table here ------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["redis", "rabbitmq", "memory"])
def test_a_queue_elsewhere_is_never_taken_for_a_table(dsn: str, engine: Engine, backend: str) -> None:
    """Its server is not there either: what goes into the outbox does not ask it."""
    env = "prod" if backend == "redis" else "local"
    with app(dsn, env=env, backend=backend, name="shop") as jf:
        assert jf.database is not None
        schema.upgrade(jf.database, jf.config.jobs_table)
        with Session(engine) as session:
            WAYS["enqueue"](jf, session)
            session.commit()
        names = [part.component for part in schema.status(jf.database, jf.config.jobs_table)]
    assert names == ["jfast_inbox", "jfast_outbox", "jfast_schedule_ticks"]


def test_the_message_in_prod_names_tables_that_there_are(dsn: str, engine: Engine) -> None:
    missing = pytest.raises(SchemaError, match="the tables of jfast_inbox are at version 0")
    with app(dsn, env="prod", backend="redis", name="shop") as jf, Session(engine) as session, missing:
        WAYS["enqueue"](jf, session)
