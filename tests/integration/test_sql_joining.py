"""Sessions somebody else made: what is enqueued, published or claimed through them ends as they end, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from jfast_sync import JFast, Job
from jfast_sync.buses.recording import RecordingBus
from jfast_sync.config import load_config
from jfast_sync.errors import UnsupportedError
from jfast_sync.event import Event
from jfast_sync.inbox import claim_once
from jfast_sync.job import new_id
from jfast_sync.queues.memory import MemoryQueue
from jfast_sync.sql import dsn as forms
from jfast_sync.sql.engine import Database
from jfast_sync.sql.place import in_database
from jfast_sync.tasks.registry import Registry
from tests.integration.sql_support import dsn

__all__ = ["dsn"]

Way = Callable[[JFast, Any], object]
WAYS: dict[str, Way] = {
    "enqueue": lambda jf, session: jf.outbox.enqueue(session, Job(task="a.b")),
    "publish": lambda jf, session: jf.outbox.publish(session, "orders", Event(type="placed")),
    "claim_once": lambda jf, session: claim_once(session, new_id(), consumer="c"),
}


@contextmanager
def opened(dsn: str, queue: str, engine: Engine | None = None) -> Iterator[JFast]:
    overrides: dict[str, Any] = {"database": {"dsn": dsn}, "queue": {"listen": False}, "outbox": {"relay": False}}
    config = load_config(environ={}, overrides=overrides)
    given = MemoryQueue() if queue == "elsewhere" else None
    with JFast(config, tasks=Registry(), engine=engine, queue=given, bus=RecordingBus()) as jf:
        jf.setup()
        yield jf


@pytest.fixture(params=["in the database", "elsewhere"])
def jf(request: pytest.FixtureRequest, dsn: str) -> Iterator[JFast]:
    with opened(dsn, request.param) as made:
        yield made


@pytest.fixture
def engine(dsn: str) -> Iterator[Callable[..., Engine]]:
    """Make an engine on the test's database, as somebody who does not know of this library would."""
    made: list[Engine] = []

    def make(**options: Any) -> Engine:
        made.append(create_engine(forms.parse(dsn), **options))
        return made[-1]

    yield make
    for each in made:
        each.dispose()


def rows(jf: JFast) -> int:
    """Everything that was stored anywhere."""
    assert jf.database is not None
    counts = " + ".join(f"(SELECT count(*) FROM {name})" for name in ("jfast_jobs", "jfast_outbox", "jfast_inbox"))
    with jf.database.session() as session:
        return int(session.execute(text(f"SELECT {counts}")).scalar_one())


def recipe(engine: Engine) -> Engine:
    """Make SQLite's transactions SQLAlchemy's, by the two handlers its documentation gives."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


# --- AUTOCOMMIT ------------------------------------------------------------------------------------------------


def test_a_session_in_autocommit_is_refused(jf: JFast, engine: Callable[..., Engine]) -> None:
    switched = Session(engine())
    switched.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    for session in (
        Session(engine(isolation_level="AUTOCOMMIT")),
        Session(engine().execution_options(isolation_level="AUTOCOMMIT")),
        switched,
    ):
        for way in WAYS.values():
            with pytest.raises(UnsupportedError, match=r"in AUTOCOMMIT.*jf\.session\(\)"):
                way(jf, session)
        session.rollback()
        session.close()
    assert rows(jf) == 0


# --- savepoints ------------------------------------------------------------------------------------------------


def test_what_a_savepoint_holds_ends_with_the_session_or_is_refused(jf: JFast, engine: Callable[..., Engine]) -> None:
    """The sqlite3 driver begins nothing before a savepoint, so that the savepoint's release is a commit."""
    made = engine()
    for way in WAYS.values():
        for end in (Session.rollback, Session.close):
            session = Session(made)
            with session.begin_nested():
                if made.dialect.name == "sqlite":
                    with pytest.raises(UnsupportedError, match="in a savepoint"):
                        way(jf, session)
                else:
                    way(jf, session)
            end(session)
            session.close()
    assert rows(jf) == 0


def test_outside_of_a_savepoint_a_plain_engine_will_do(jf: JFast, engine: Callable[..., Engine]) -> None:
    made = engine()
    for number, way in enumerate(WAYS.values()):
        for end, stored in ((Session.rollback, number), (Session.commit, number + 1)):
            with Session(made) as session:
                way(jf, session)
                end(session)
            assert rows(jf) == stored


def test_an_engine_whose_transactions_are_its_own_has_savepoints(jf: JFast, engine: Callable[..., Engine]) -> None:
    made = engine()
    if made.dialect.name == "sqlite":
        recipe(made)
    _check_savepoints(jf, lambda: Session(made))


def test_the_librarys_sessions_have_savepoints_on_a_given_engine_too(dsn: str, engine: Callable[..., Engine]) -> None:
    with opened(dsn, "in the database", engine()) as jf:
        database = jf.database
        assert database is not None
        _check_savepoints(jf, lambda: Session(database.engine))
        attempt = database.attempt()
        with attempt.session.begin_nested():
            for way in WAYS.values():
                way(jf, attempt.session)
        attempt.close()
        assert rows(jf) == len(WAYS)


def _check_savepoints(jf: JFast, make: Callable[[], Session]) -> None:
    for number, way in enumerate(WAYS.values()):
        for end, stored in ((Session.rollback, number), (Session.commit, number + 1)):
            with make() as session:
                with session.begin_nested():
                    way(jf, session)
                end(session)
            assert rows(jf) == stored


# --- what is no session ----------------------------------------------------------------------------------------


class AsyncSession:
    """Stands for SQLAlchemy's, which needs a package that is not installed here."""


def test_what_is_no_session_is_refused_by_name(dsn: str, engine: Callable[..., Engine]) -> None:
    made = engine()
    with opened(dsn, "in the database") as jf, made.connect() as connection:
        for wrong, said in (
            (AsyncSession(), "AsyncSession: jfast-sync is for SQLAlchemy's synchronous sessions"),
            (connection, r"Connection: pass Session\(connection\)"),
            (made, "an Engine: open a session of it"),
            (sessionmaker(made), "a sessionmaker: open a session of it"),
            (None, "None"),
            ("session", "'session'"),
        ):
            for way in WAYS.values():
                with pytest.raises(TypeError, match=said):
                    way(jf, wrong)
        assert rows(jf) == 0


def test_a_scoped_session_is_one(jf: JFast, engine: Callable[..., Engine]) -> None:
    session = scoped_session(sessionmaker(engine()))
    for way in WAYS.values():
        way(jf, session)
    session.commit()
    session.remove()
    assert rows(jf) == len(WAYS)


# --- another database ------------------------------------------------------------------------------------------

HERE = "u@h/shop?options=-c%20search_path%3Da"
PLACES = {
    "u@/shop?host=/run/a": {"u@/shop?host=/run/b": False, "u@/shop?host=/run/a": True, "u@/shop": False},
    "u@/shop": {"u@/shop?host=10.0.0.1&port=6000": False, "u@/shop?port=6000": False, "u@/shop?port=5432": True},
    "u@h:6000/shop": {"u@/shop?host=h&port=6000": True, "u@h/shop": False, "u@h:6000/other": False},
    "u@/shop?host=a:1&host=b:2": {"u@/shop?host=b,a&port=2,1": True, "u@/shop?host=a:1&host=b:1": False},
    HERE: {
        "u@h/shop?options=-csearch_path%3Db": False,
        "u@h/shop": False,
        "u@h/shop?options=-c%20statement_timeout%3D9%20--search-path%3Da": True,
    },
    "u@h/shop?options=-c%20jit%3Doff": {"u@h/shop": True},
    "": {"": False},
}
PAIRS = [(here, there, same) for here, others in PLACES.items() for there, same in others.items()]


@pytest.mark.parametrize(("here", "there", "same"), PAIRS)
def test_a_session_is_in_the_database_its_url_leads_to(here: str, there: str, same: bool) -> None:
    database = Database(create_engine(f"postgresql+psycopg://{here}"))
    with Session(create_engine(f"postgresql+psycopg://{there}")) as session:
        assert in_database(session, database) is same
        if here == HERE:
            assert in_database(session, database, any_schema=True) is True
    with Session(database.engine) as session:
        assert in_database(session, database) is True
