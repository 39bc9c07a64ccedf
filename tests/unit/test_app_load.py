"""Finding the app a command works for, and sizing its pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.pool import QueuePool

from jfast_sync.app import load
from jfast_sync.errors import ConfigError
from jfast_sync.tasks.registry import isolated

APP = """
from jfast_sync import connect
def create_app():
    return connect()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with isolated():
        yield tmp_path
    for name in ("main", "app", "shop"):
        sys.modules.pop(name, None)


def pool_size(threads: int | None, target: str | None) -> object:
    with load(target, threads=threads) as app:
        assert app.database is not None
        pool = app.database.engine.pool
        assert isinstance(pool, QueuePool)
        return pool.size()


@pytest.mark.parametrize("target", [None, "shop:create_app"])
def test_the_pool_has_room_for_every_thread_of_the_worker(project: Path, target: str | None) -> None:
    (project / "shop.py").write_text(APP)
    assert pool_size(32, target) == 36


@pytest.mark.parametrize("target", [None, "shop:create_app"])
def test_a_configured_pool_is_left_as_it_is(project: Path, target: str | None) -> None:
    (project / "jfast.toml").write_text("[plugin.database]\npool_size = 3\n")
    (project / "shop.py").write_text(APP)
    assert pool_size(32, target) == 3


def test_a_conventional_factory_is_found_without_importing_other_files(project: Path) -> None:
    (project / "main.py").write_text("raise SystemExit('not an app')\n")
    (project / "app.py").write_text(APP)
    with load() as app:
        assert app.source is not None
        assert app.source.target == "app:create_app"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "write MODULE:ATTR"),
        ("shop:nothing", "cannot be loaded: AttributeError"),
        ("absent:app", "cannot be loaded: ModuleNotFoundError"),
        ("shop:NUMBER", "is neither a Flask app"),
    ],
)
def test_what_is_no_app_is_named(project: Path, target: str, said: str) -> None:
    (project / "shop.py").write_text(APP + "NUMBER = 7\n")
    with pytest.raises(ConfigError, match=said):
        load(target)
