"""When a relay is woken: once what was written can be seen, whoever owns the transaction."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from jfast_sync.job import Job
from jfast_sync.tasks.registry import isolated
from tests.integration.outbox_support import opened
from tests.waiting import eventually


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request):
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.mark.parametrize("mode", ["create_savepoint", "conditional_savepoint"])
def test_a_session_inside_of_somebodys_transaction_wakes_after_that_ones_commit(dsn, mode):
    seen = []
    with isolated(), opened(dsn) as (jf, _), jf.outbox.waking(lambda: seen.append(jf.messages.stats().pending)):
        with jf.database.engine.connect() as connection:
            outer = connection.begin()
            with Session(connection, join_transaction_mode=mode) as session:
                jf.outbox.enqueue(session, Job(task="t"))
                session.commit()
            assert seen == []
            outer.commit()
        eventually(lambda: list(seen), 10, until=lambda found: found == [1])

        with jf.database.engine.connect() as connection:
            with Session(connection) as session:
                jf.outbox.enqueue(session, Job(task="t"))
                session.commit()
            assert seen == [1, 2]
