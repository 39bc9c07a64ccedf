"""The page of guarantees names a test for each sentence, and the tests are there."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall("\n".join((ROOT / p).read_text() for p in PAGES)))))
def test_a_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"


def test_nothing_looks_like_a_test_and_is_not_checked() -> None:
    assert len(NAMED.findall(PAGE)) == PAGE.count("::")


def test_every_promise_names_a_test() -> None:
    promises = PAGE.partition("## What is not promised")[0]
    sections = re.split(r"^## ", promises, flags=re.MULTILINE)[1:]
    assert len(sections) >= 6
    for section in sections:
        items = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
        assert items, section[:40]
        assert [item for item in items if not NAMED.search(item)] == []
