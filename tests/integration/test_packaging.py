"""What is installed: two packages, one command, the types' marker and the licence; nothing else."""

from __future__ import annotations

import configparser
import email.message
import email.parser
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("jfast_sync", "cli", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    # From a copy: building writes beside the sources.
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(out),
        str(tree),
    ]
    done = subprocess.run(build, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def _metadata_folder(wheel: zipfile.ZipFile) -> str:
    (folder,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    return folder


def _metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    return email.parser.Parser().parsestr(wheel.read(f"{_metadata_folder(wheel)}/METADATA").decode())


def test_it_installs_the_library_and_the_command_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {"jfast_sync", "jfast_sync_cli", _metadata_folder(wheel)}


def test_every_module_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    expected = {
        path.relative_to(root).as_posix()
        for root, package in ((ROOT, "jfast_sync"), (ROOT / "cli", "jfast_sync_cli"))
        for path in (root / package).rglob("*.py")
    }
    assert {name for name in wheel.namelist() if name.endswith(".py")} == expected


def test_the_types_are_marked(wheel: zipfile.ZipFile) -> None:
    assert "jfast_sync/py.typed" in wheel.namelist()


def test_the_command_is_there(wheel: zipfile.ZipFile) -> None:
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(f"{_metadata_folder(wheel)}/entry_points.txt").decode())
    assert dict(scripts["console_scripts"]) == {"jfast-sync": "jfast_sync_cli.main:main"}


def test_the_metadata_say_what_it_needs(wheel: zipfile.ZipFile) -> None:
    metadata = _metadata(wheel)
    assert metadata["Name"] == "jfast-sync"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert f"{_metadata_folder(wheel)}/licenses/LICENSE" in wheel.namelist()
    extras = metadata.get_all("Provides-Extra")
    assert extras == ["postgres", "redis", "rabbitmq", "kafka", "otel", "all"]
    # Without an extra it runs on SQLite: no driver of a server is required.
    required = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert {re.split("[<>=;]", line)[0] for line in required} == {
        "sqlalchemy",
        "flask",
        "click",
        "croniter",
        "tzdata",
    }


def test_the_version_is_one(wheel: zipfile.ZipFile) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {_metadata(wheel)['Version']}" in changelog
