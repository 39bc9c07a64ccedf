"""The reference page names every command and every option, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jfast_sync_cli.main import COMMANDS, main

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
EVERYWHERE = {"--config", "--debug", "--app", "--import", "--help", "--version"}


def options(command: click.Command) -> set[str]:
    return {name for param in command.params for name in param.opts if name.startswith("--")}


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from commands(found, f"{name} {inner}")


def loaded(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def section(name: str) -> str:
    found = re.search(rf"^## {name}.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section for {name}"
    return found[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    text = section(name)
    for path, command in commands(loaded(name), name):
        assert path in text
        described = set(re.findall(r"--[a-z-]+", text)) | EVERYWHERE
        assert options(command) <= described, path


def test_no_option_is_made_up() -> None:
    known = set(EVERYWHERE)
    for name in COMMANDS:
        for _, command in commands(loaded(name), name):
            known |= options(command)
    assert set(re.findall(r"(?<![-|])--[a-z]+(?:-[a-z]+)*", PAGE)) <= known
