"""What the pages say of the code is so: files exist, the errors are these, the layers are those that are enforced."""

from __future__ import annotations

import inspect
import re
import tomllib

from jfast_sync import errors
from tests.docs.pages import PAGES, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_files_and_folders_that_pages_name_are_there() -> None:
    named = {
        (page, path)
        for page in PAGES
        for path in re.findall(r"`((?:jfast_sync|cli|tests|docs)/[\w./-]+)`", (ROOT / page).read_text())
    }
    assert named
    assert [f"{page}: {path}" for page, path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    tree = re.search(r"```text\nJFastError\n(.*?)```", PAGE, re.DOTALL)
    assert tree is not None
    shown: dict[str, str] = {}
    above = ["JFastError"]
    for line in tree[1].splitlines():
        drawn = re.match(r"([│ ]*)[├└]── (\w+)", line)
        assert drawn is not None, line
        depth = len(drawn[1]) // 4 + 1
        shown[drawn[2]] = above[depth - 1]
        above[depth:] = [drawn[2]]
    kinds = {name: getattr(errors, name) for name in errors.__all__ if name != "JFastError"}
    assert shown == {name: kind.__mro__[1].__name__ for name, kind in kinds.items()}
    assert re.findall(r"[├└]── (\w+)", inspect.getdoc(errors) or "") == list(shown)


def test_the_layers_are_those_that_are_enforced() -> None:
    """A room that pyproject.toml has in brackets is not finished, and need not be drawn yet."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "rooms")
    enforced = [_rooms(layer) for layer in layers]
    finished = [{room for room in layer if not room.startswith("(")} for layer in enforced]
    drawn = re.search(r"```text\ncli/\S+ .*?\n(.*?)```", PAGE, re.DOTALL)
    assert drawn is not None
    shown = [_rooms(line.split("   ")[0]) for line in drawn[1].splitlines()]
    assert len(shown) == len(enforced)
    for here, needed, known in zip(shown, finished, enforced, strict=True):
        assert needed <= here <= {room.strip("()") for room in known}, "draw the layers as pyproject.toml has them"


def _rooms(layer: str) -> set[str]:
    return {room.strip() for room in re.split(r"[|:]", layer)}
