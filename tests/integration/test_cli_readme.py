"""What the README's quick start and Flask app leave in the database; that its blocks run is shown with the docs."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from tests.docs.pages import Reader, blocks, run

FLASK = "from main import app; print(app.test_client().post('/invoices/8').status_code)"


def invoices(folder: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(folder / "jfast.db")) as connection:
        return connection.execute("SELECT id, sent FROM invoices ORDER BY id").fetchall()


def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path).follow("README.md")
    assert invoices(reader.project) == [(7, 1)]
    assert run([sys.executable, "-c", FLASK], reader.project).stdout == "202\n"
    assert run(["jfast-sync", "worker", "--drain"], reader.project).returncode == 0
    assert invoices(reader.project) == [(7, 1), (8, 1)]


def test_the_readme_begins_with_the_two_commands() -> None:
    install, test = [block.text for block in blocks("README.md") if block.language == "sh"]
    assert install == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/jfast-sync demo\n"
    assert test == "python3 -m venv .venv && .venv/bin/pip install tox && .venv/bin/tox\n"
