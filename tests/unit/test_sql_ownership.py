"""Which statements end the transaction they are run in."""

from __future__ import annotations

import pytest

from jfast_sync.sql import ownership


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "  -- so\n /* it */ commit and chain",
        "end",
        "ABORT",
        "rollback work",
        "PREPARE TRANSACTION 'x'",
        "SELECT 1; COMMIT",
        "INSERT INTO t VALUES ('a;b');\n/* now */ rollback;",
        "DO $x$ BEGIN PERFORM 1; END $x$; COMMIT",
    ],
)
def test_these_do(statement: str) -> None:
    assert ownership._ends(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'COMMIT'",
        "ROLLBACK TO SAVEPOINT a",
        "ROLLBACK WORK TO a",
        "INSERT INTO t VALUES ('first; commit')",
        'SELECT 1 AS "a; rollback"',
        "SELECT 1; ROLLBACK TO a",
        "SELECT 1 -- ; commit",
        "DO $$ BEGIN PERFORM 1; COMMIT; END $$",  # PostgreSQL refuses it in a transaction
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; END",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
        "SELECT 1; SELECT commits FROM t",
    ],
)
def test_these_do_not(statement: str) -> None:
    assert not ownership._ends(statement)
