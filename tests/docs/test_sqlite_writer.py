"""What the page of guarantees says about SQLite's one writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from jfast_sync import JFast, Job
from jfast_sync.tasks.registry import isolated
from jfast_sync.testing import enqueued, sqlite_app
from tests.waiting import eventually


@pytest.fixture
def jf() -> Iterator[JFast]:
    with isolated(), sqlite_app() as app:
        with app.session() as session:
            session.execute(text("CREATE TABLE notes (n integer)"))
        yield app


def hold(jf: JFast, statement: str, inside: threading.Event, leave: threading.Event) -> threading.Thread:
    """Keep a transaction open in a thread of its own, after `statement`, until told to leave."""

    def work() -> None:
        with jf.session() as session:
            session.execute(text(statement))
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    return thread


def test_a_transaction_that_has_only_read_holds_up_nobody(jf: JFast) -> None:
    inside, leave = threading.Event(), threading.Event()
    reader = hold(jf, "SELECT count(*) FROM notes", inside, leave)
    try:
        jf.queue.enqueue(Job(task="any"))
        assert len(enqueued(jf)) == 1
    finally:
        leave.set()
        reader.join()


def test_a_transaction_that_has_written_is_waited_for(jf: JFast) -> None:
    inside, leave, trying = threading.Event(), threading.Event(), threading.Event()
    writer = hold(jf, "INSERT INTO notes VALUES (1)", inside, leave)

    def enqueue() -> None:
        trying.set()
        jf.queue.enqueue(Job(task="any"))

    other = threading.Thread(target=enqueue)
    other.start()
    assert trying.wait(10)
    other.join(0.3)  # however long this is, the file is held for longer
    assert other.is_alive()
    assert enqueued(jf) == []
    leave.set()
    writer.join()
    other.join()
    assert eventually(lambda: len(enqueued(jf))) == 1
