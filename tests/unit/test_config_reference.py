"""The reference page says of every key what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from jfast_sync.config import load_config, reference
from jfast_sync.config.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_page_holds_the_tables_as_the_code_renders_them() -> None:
    assert PAGE.read_text().endswith("\n" + reference()), (
        "write what jfast_sync.config.reference() returns to the page's end"
    )


def test_example_on_the_page_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "jfast.toml").write_text(example[1])
    config = load_config(tmp_path, environ={})
    assert config.queue.max_attempts == tomllib.loads(example[1])["plugin"]["queue"]["max_attempts"]
    assert config.backend == "postgres"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title())
def test_every_key_says_what_it_means_and_has_a_variable(table: type) -> None:
    keys = table.keys()  # type: ignore[attr-defined]
    assert keys
    for key in keys.values():
        assert key.meaning.endswith("."), key.name
        assert all(re.fullmatch(r"JFAST_[A-Z_]+", name) for name in key.environment), key.name
        assert "|" not in key.meaning + key.form, "would break the page's table"


def test_no_two_keys_share_a_variable() -> None:
    names = [name for table in TABLES for key in table.keys().values() for name in key.environment]
    assert len(names) == len(set(names))
