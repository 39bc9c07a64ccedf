"""What README and tutorial show is run: files are written where they say, commands are executed in order."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import warm

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|toml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text())


def write(folder: Path, text: str) -> None:
    named = re.match(r"# (\S+\.(?:py|toml))\n", text)
    assert named, f"a block of code begins with its file's name: {text[:60]!r}"
    file = folder / named[1]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def execute(folder: Path, line: str) -> str:
    program, *arguments = shlex.split(line)
    if program == "jfast-sync":
        code, out, err = warm.call(arguments, folder, dict(os.environ))
    else:
        assert program == "python"
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 0, f"{line}: {out}{err}"
    return out


def follow(page: str, folder: Path) -> dict[str, str]:
    """Do what the page says in `folder`; return what each command printed last."""
    said: dict[str, str] = {}
    for kind, text in blocks(page):
        if kind != "sh":
            write(folder, text)
            continue
        for line in text.splitlines():
            if line.startswith(("jfast-sync ", "python ")):
                said[line] = execute(folder, line)
    return said


def test_the_readme_works_as_written(tmp_path: Path) -> None:
    said = follow("README.md", tmp_path)
    assert "invoices.send" in said["jfast-sync stats"]
    with sqlite3.connect(tmp_path / "jfast.db") as connection:
        assert connection.execute("SELECT id, sent FROM invoices").fetchall() == [(7, 1)]
    connection.close()
    # The Flask app, with the same tasks.
    code = "from main import app; print(app.test_client().post('/invoices/8').status_code)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "202\n", done.stderr
    execute(tmp_path, "jfast-sync worker --drain")
    with sqlite3.connect(tmp_path / "jfast.db") as connection:
        assert connection.execute("SELECT id, sent FROM invoices ORDER BY id").fetchall() == [(7, 1), (8, 1)]
    connection.close()


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    said = follow("docs/tutorial.md", tmp_path)
    assert "orders.tell_customer" in said["jfast-sync tasks"]
    assert said["jfast-sync jobs dead"] == "No dead letters.\n"
    assert said["jfast-sync jobs retry --all --task orders.tell_customer"] == "1 dead letter retried.\n"
    assert (tmp_path / "letter-1.txt").exists()
    with sqlite3.connect(tmp_path / "jfast.db") as connection:
        assert connection.execute("SELECT count FROM stock").fetchall() == [(5,)]  # 10 - 1 - 1 - 3
    connection.close()


def test_the_readme_begins_with_the_two_commands() -> None:
    install, test = [text for kind, text in blocks("README.md") if kind == "sh"][:2]
    assert install == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/jfast-sync demo\n"
    assert test == "python3 -m venv .venv && .venv/bin/pip install tox && .venv/bin/tox\n"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/reference/command-line.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    broken = [link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()]
    assert broken == []
