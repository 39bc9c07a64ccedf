"""Jobs of an app on PostgreSQL, run in the test's thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from jfast_sync import JFast, connect
from jfast_sync.tasks import TaskSession, task
from jfast_sync.tasks.registry import isolated
from jfast_sync.testing import Drained, assert_enqueued, drain, inline


@pytest.fixture
def jf(postgres_dsn: str) -> Iterator[JFast]:
    with isolated(), connect(overrides={"database": {"dsn": postgres_dsn}}) as app:
        with app.session() as session:
            session.execute(text("CREATE TABLE notes (n integer)"))
        yield app


def test_drained_and_inline(jf: JFast) -> None:
    @task("write", idempotent_on=lambda payload: payload["n"])
    def write(payload: dict[str, int], session: TaskSession) -> None:
        session.execute(text("INSERT INTO notes VALUES (:n)"), payload)
        if payload["n"] == 13:
            raise ValueError("unlucky")

    for n in (1, 1, 2):
        write.enqueue({"n": n})
    assert drain(jf) == Drained(done=2, skipped=1)
    with inline(jf), jf.session() as session:
        write.enqueue({"n": 3}, session=session)
    with inline(jf), pytest.raises(ValueError, match="unlucky"):
        write.enqueue({"n": 13})
    assert assert_enqueued(jf, write, payload={"n": 13}).attempts == 1
    with jf.session() as session:
        assert session.execute(text("SELECT n FROM notes ORDER BY n")).scalars().all() == [1, 2, 3]
