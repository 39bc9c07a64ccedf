"""DSN forms: what is accepted, what it becomes, and what is refused in one sentence."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from jfast_sync.errors import ConfigError, MissingDriverError, UnavailableError
from jfast_sync.sql import dsn
from jfast_sync.sql.engine import Database


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+asyncpg"])
def test_every_postgres_form_becomes_psycopg(scheme: str) -> None:
    url = dsn.parse(f"{scheme}://app:pw@db:5433/shop?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert (url.host, url.port, url.database, url.query["sslmode"]) == ("db", 5433, "shop", "require")
    assert dsn.libpq(f"{scheme}://app:pw@db:5433/shop") == "postgresql://app:pw@db:5433/shop"


def test_a_relative_sqlite_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database("sqlite:///jobs.db")
    monkeypatch.chdir("/")
    assert database.path == str(tmp_path.resolve() / "jobs.db")
    database.dispose()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "in memory"),
        ("mysql://root:hunter2@db/shop", "not supported"),
        ("hunter2", "not a URL"),
        ("postgresql://app:hunter2@db", "names no database"),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_password(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Database(text)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value) or text == "hunter2"


def test_an_engine_in_memory_is_refused() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigError, match="in memory"):
        Database(engine)
    engine.dispose()


def test_an_engine_for_another_database_is_refused() -> None:
    class Elsewhere:
        class dialect:  # noqa: N801 - as SQLAlchemy spells it
            name = "mysql"

    with pytest.raises(ConfigError, match="mysql"):
        Database(Elsewhere())  # type: ignore[arg-type]


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDriverError, match=r'pip install "jfast-sync\[postgres\]"'):
        Database("postgresql://app@db/shop")


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(UnavailableError, match=r"3\.35"):
        Database(f"sqlite:///{tmp_path}/jobs.db")


def test_a_password_is_not_in_the_representation() -> None:
    database = Database("postgresql://app:hunter2@db/shop")
    assert "hunter2" not in repr(database)


def test_behind_pgbouncer_nothing_is_prepared_and_no_option_is_sent() -> None:
    database = Database("postgresql://app@db/shop", pgbouncer=True)
    arguments: list[dict[str, object]] = []
    for engine in (database.engine, database.control):
        _, given = engine.dialect.create_connect_args(engine.url)
        arguments.append(dict(given))
        assert "options" not in given
    assert len(arguments) == 2


@pytest.mark.parametrize("option", ["foo=bar", "async_fallback=true"])
def test_an_option_nobody_knows_is_a_wrong_configuration(option: str) -> None:
    with pytest.raises(ConfigError, match=f"has the option '{option.partition('=')[0]}'") as caught:
        Database(f"postgresql://u:s3cret@h/x?{option}")
    assert "s3cret" not in str(caught.value)


def test_options_of_the_client_library_are_kept() -> None:
    text = "postgresql://u@/x?host=a&host=b&connect_timeout=3&sslmode=require&application_name=shop"
    assert len(Database(text).engine.url.query["host"]) == 2


def test_the_siblings_word_for_tls_is_understood() -> None:
    url = Database("postgresql+asyncpg://u@h/x?ssl=require").engine.url
    assert dict(url.query) == {"sslmode": "require"}
