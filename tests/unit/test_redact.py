"""Texts are safe to store and show: nothing secret, nothing unbounded, nothing that cannot be printed."""

from __future__ import annotations

import time

import psycopg
import pytest
import sqlalchemy as sa

from jfast_sync.redact import error_text, mask_dsn, redact, traceback_text

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgresql://app:hunter2@db:5432/x is down", "postgresql://app:***@db:5432/x is down"),
        ("postgresql://app:hun:ter2/hunter2@hunter2@db/x", "postgresql://app:***@db/x"),
        ("postgresql://app:p%40hunter2%2F@db/x", "postgresql://app:***@db/x"),
        ("redis://:hunter2@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
        ("'amqps://a:hunter2@h/v', retrying", "'amqps://a:***@h/v', retrying"),
        (
            "postgresql://app@db/x?password=hunter2&sslmode=require",
            "postgresql://app@db/x?password=***&sslmode=require",
        ),
        ("postgresql://db/x?sslpassword=hunter2", "postgresql://db/x?sslpassword=***"),
        ("host=db password=hunter2 user=app", "host=db password=*** user=app"),
        ("host=db password = 'a b\\' hunter2' user=app", "host=db password = *** user=app"),
        ("host=db password=a\\ hunter2 user=app", "host=db password=*** user=app"),
        ("Client(sasl_plain_password='hunter2', port=1)", "Client(sasl_plain_password=***, port=1)"),
        ('{"sasl_password": "hun\\"ter2 hunter2", "port": 1}', '{"sasl_password": ***, "port": 1}'),
        ("{'passwd': b'hunter2'}", "{'passwd': ***}"),
        ("PASSWORD=hunter2", "PASSWORD=***"),
        ("client_secret=hunter2 x", "client_secret=*** x"),
        ('password authentication failed for user "app"', 'password authentication failed for user "app"'),
        ("see https://example.org/a:b and http://h:80/x", "see https://example.org/a:b and http://h:80/x"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_passwords_are_masked(text: str, kept: str) -> None:
    assert redact(text) == kept
    assert redact(kept) == kept, "masking twice changes nothing"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/x?sslmode=require", "postgresql://app:***@db:5432/x?sslmode=require"),
        ("postgresql+asyncpg://app:a b@hunter2/?@db/x", "postgresql+asyncpg://app:***@db/x"),
        ("postgresql://app@db/x", "postgresql://app@db/x"),
        ("redis://:hunter2@h/0", "redis://:***@h/0"),
        ("host=db password=hunter2", "host=db password=***"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("", ""),
    ],
)
def test_a_dsn_is_shown_without_its_password(dsn: str, shown: str) -> None:
    assert mask_dsn(dsn) == shown


def test_statement_and_parameters_of_sqlalchemy_are_left_out() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(sa.exc.OperationalError) as caught:
        connection.execute(sa.text("SELECT\n\n :a FROM nowhere"), {"a": f"(Background on this error at: x)\n{SECRET}"})
    engine.dispose()
    assert SECRET in str(caught.value)
    assert error_text(caught.value) == "OperationalError: (sqlite3.OperationalError) no such table: nowhere"
    assert SECRET not in traceback_text(caught.value)
    assert "no such table: nowhere" in traceback_text(caught.value)


@pytest.mark.parametrize("limit", [None, 20])
def test_values_in_a_servers_message_are_left_out(limit: int | None) -> None:
    text = (
        'duplicate key value violates unique constraint "a"\n'
        f"DETAIL:  Key (email)=({SECRET}\nor {SECRET}) already exists.\n"
        "HINT:  Choose another.\n"
        f"CONTEXT:  unnamed portal parameter $1 = '{SECRET}'\n"
        f"LINE 1: SELECT '{SECRET}'\n               ^"
    )
    shown = error_text(psycopg.errors.UniqueViolation(text), limit or 2000)
    assert SECRET not in shown
    if limit is None:
        assert shown == 'UniqueViolation: duplicate key value violates unique constraint "a"\nHINT:  Choose another.'


def test_an_exception_without_text_is_its_name() -> None:
    assert error_text(KeyError()) == "KeyError"
    assert error_text(ValueError("x")) == "ValueError: x"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


def test_an_exception_that_cannot_be_printed_keeps_its_name() -> None:
    assert error_text(Unprintable()) == "Unprintable: <its text cannot be shown: __str__ raised SystemExit>"
    assert "Unprintable" in traceback_text(Unprintable())


def test_what_no_database_stores_is_replaced() -> None:
    shown = error_text(ValueError("a\x00b\ud800c"))
    assert shown == "ValueError: a\ufffdb\ufffdc"
    assert "\x00" not in traceback_text(ValueError("a\x00b\udfffc"))


HOSTILE = [
    "x",
    "a://b:",
    "password='",
    "\nDETAIL:",
    "[SQL: ",
    "?",
    "://",
    "\\",
    "(Background on this error at: ",
    "a ",
    "\n",
    "password ",
    "&a-",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_five_megabytes_are_cut_in_no_time(part: str) -> None:
    error = ValueError(part * (5_000_000 // len(part)))
    before = time.process_time()
    shown = error_text(error)
    assert time.process_time() - before < 1.0
    assert shown.startswith("ValueError")
    assert len(shown) <= 2000


def test_a_secret_at_the_cut_does_not_show() -> None:
    padding = "y" * 1950
    for length in range(0, 120, 7):
        text = f"{padding[length:]} postgresql://app:{SECRET * 9_000}@db/x"
        assert "hun" not in error_text(ValueError(text))


def chain(length: int) -> BaseException:
    error: BaseException = ValueError("the root")
    for number in range(length):
        outer = RuntimeError(f"error {number}")
        outer.__cause__ = error
        error = outer
    return error


def test_a_chain_of_thousands_keeps_its_ends() -> None:
    before = time.process_time()
    shown = traceback_text(chain(3000))
    assert time.process_time() - before < 1.0
    assert shown.startswith("ValueError: the root")
    assert shown.endswith("RuntimeError: error 2999")
    assert "exceptions more" in shown
    assert len(shown) <= 8000
    assert error_text(chain(3000)) == "RuntimeError: error 2999"


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert traceback_text(first).count("ValueError") == 2


def raised(depth: int, password: str) -> BaseException:
    def dig(left: int) -> None:
        if left:
            dig(left - 1)
        raise LookupError("deep down")

    try:
        dig(depth)
    except LookupError as error:
        error.add_note(f"dsn was postgresql://a:{password}@h/x")
        return error
    raise AssertionError


def test_a_traceback_shows_places_but_no_values() -> None:
    shown = traceback_text(raised(2, SECRET))
    assert shown.startswith("Traceback (most recent call last):\n")
    assert "in dig" in shown
    assert 'raise LookupError("deep down")' in shown
    assert "LookupError: deep down" in shown
    assert "postgresql://a:***@h/x" in shown
    assert SECRET not in shown


def test_a_deep_stack_and_a_small_limit_keep_the_error() -> None:
    error = raised(500, SECRET)
    assert "frames more" in traceback_text(error)
    for limit in (50, 200, 1000):
        shown = traceback_text(error, limit)
        assert len(shown) <= limit
        assert shown.startswith("Tr")


def test_context_is_followed_unless_hidden() -> None:
    outer = ValueError("outer")
    outer.__context__ = KeyError("inner")
    assert "inner" in traceback_text(outer)
    outer.__suppress_context__ = True
    assert "inner" not in traceback_text(outer)


def test_members_of_a_group_are_named() -> None:
    group = ExceptionGroup("two", [ValueError("one"), KeyError(f"password={SECRET}")])
    assert "ValueError: one" in traceback_text(group)
    assert SECRET not in traceback_text(group)
