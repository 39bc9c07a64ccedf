"""SQLite's transactions as this library runs them: readers hold nothing, writers wait, savepoints hold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from jfast_sync.sql import sqlite_transactions
from jfast_sync.sql.engine import Database


@pytest.fixture
def database(sqlite_dsn: str) -> Iterator[Database]:
    made = Database(sqlite_dsn)
    with made.session() as session:
        session.execute(text("CREATE TABLE notes (n INTEGER)"))
    yield made
    made.dispose()


@pytest.fixture(params=["ours", "a user's engine"])
def either(request: pytest.FixtureRequest, database: Database, sqlite_dsn: str) -> Iterator[Database]:
    """A database of ours, and one over an engine that somebody else made."""
    if request.param == "ours":
        yield database
        return
    engine = create_engine(sqlite_dsn)
    given = Database(engine)
    yield given
    given.dispose()
    engine.dispose()


def notes(database: Database) -> list[int]:
    with database.session() as session:
        return list(session.execute(text("SELECT n FROM notes ORDER BY n")).scalars())


def test_an_inner_savepoints_insert_does_not_survive_the_outer_rollback(either: Database) -> None:
    attempt = either.attempt()
    with attempt.session.begin_nested():
        attempt.session.execute(text("INSERT INTO notes VALUES (1)"))
    attempt.session.commit()
    attempt.session.execute(text("INSERT INTO notes VALUES (2)"))
    attempt.session.commit()
    attempt.close()
    assert notes(either) == []


def test_a_rolled_back_savepoint_takes_only_its_own(either: Database) -> None:
    attempt = either.attempt()
    attempt.session.execute(text("SELECT 1"))
    nested = attempt.session.begin_nested()
    attempt.session.execute(text("INSERT INTO notes VALUES (1)"))
    nested.rollback()
    attempt.session.execute(text("INSERT INTO notes VALUES (2)"))
    attempt.session.rollback()
    attempt.session.execute(text("INSERT INTO notes VALUES (3)"))
    attempt.commit()
    attempt.close()
    assert notes(either) == [3]


def test_a_savepoint_that_only_read_is_released_and_rolled_back_without_a_trace(either: Database) -> None:
    with either.session() as session:
        first = session.begin_nested()
        session.execute(text("SELECT 1"))
        first.rollback()
        with session.begin_nested(), session.begin_nested():
            session.execute(text("SELECT 1"))
        session.execute(text("INSERT INTO notes VALUES (1)"))
        second = session.begin_nested()
        session.execute(text("INSERT INTO notes VALUES (2)"))
        second.rollback()
    assert notes(either) == [1]


def test_a_reader_keeps_no_writer_waiting_and_writes_afterwards(either: Database) -> None:
    with either.session() as reader:
        assert reader.execute(text("SELECT count(*) FROM notes")).scalar() == 0

        def write() -> None:
            with either.session() as session:
                session.execute(text("INSERT INTO notes VALUES (1)"))

        writer = threading.Thread(target=write)
        writer.start()
        writer.join(5)
        assert not writer.is_alive()
        # A deferred transaction that had read would fail here with "locked", whatever the busy timeout.
        reader.execute(text("INSERT INTO notes VALUES (2)"))
    assert notes(either) == [1, 2]


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("SELECT 1", True),
        ("  with a as (select 1) select * from a", True),
        ("WITH a AS (SELECT 1) INSERT INTO notes SELECT * FROM a", False),
        ("INSERT INTO notes VALUES (1)", False),
        ("-- x\nSELECT 1", False),
        ("PRAGMA journal_mode", True),
        ("CREATE TABLE t (n)", False),
    ],
)
def test_in_doubt_a_statement_writes(statement: str, reads: bool) -> None:
    assert sqlite_transactions._reads(statement) is reads


def test_an_error_leaves_no_transaction_open(either: Database) -> None:
    with pytest.raises(DBAPIError), either.session() as session:
        session.execute(text("INSERT INTO notes VALUES (1)"))
        session.execute(text("INSERT INTO nowhere VALUES (1)"))
    with either.session() as session:
        session.execute(text("INSERT INTO notes VALUES (2)"))
    assert notes(either) == [2]


def test_whoever_held_the_write_lock_long_is_named(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_transactions, "_LONG", -1.0)
    with caplog.at_level(logging.WARNING, "jfast_sync.sql"), database.session() as session:
        session.execute(text("INSERT INTO notes VALUES (1)"))
    assert "a session held SQLite's only write lock" in caplog.text


def test_the_log_file_shrinks_when_nobody_reads(database: Database) -> None:
    with database.session() as session:
        for number in range(500):
            session.execute(text("INSERT INTO notes VALUES (:n)"), {"n": number})
    assert database.path is not None
    log = Path(database.path + "-wal")
    assert log.stat().st_size > 0
    database.transact(sqlite_transactions.shrink_log)
    assert log.stat().st_size == 0


def test_a_new_database_is_in_wal_mode(database: Database) -> None:
    with database.session() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA busy_timeout")).scalar() == 30_000
