"""Every page is followed to the letter: files are written, programs and commands run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, RUN, Reader, blocks

#: `sql` runs on PostgreSQL, in tests/integration/test_tenants.py.
SHOWN = ("text", "sql")

#: How many blocks of a page are not run; each says why. Anything else on any page runs.
NOT_RUN: dict[str, int] = {"README.md": 2, "docs/guides/flask.md": 1}


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.language in RUN for block in blocks(page))])
def test_a_page_works_as_written(page: str, tmp_path: Path) -> None:
    Reader(tmp_path).follow(page)


def test_no_block_is_passed_over_in_silence() -> None:
    assert {page: n for page in PAGES if (n := sum(block.not_run is not None for block in blocks(page)))} == NOT_RUN
    odd = [block.where for page in PAGES for block in blocks(page) if block.language not in (*RUN, *SHOWN)]
    assert odd == [], "blocks are python, toml, sh, console, or text where there is nothing to run"


def test_every_fence_is_read() -> None:
    for page in PAGES:
        fences = len(re.findall(r"^ *```", (ROOT / page).read_text(), re.MULTILINE))
        assert fences == 2 * len(blocks(page)), f"{page} has a fence that is not closed as it was opened"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    broken = [link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_links_into_a_page_find_their_heading(page: str) -> None:
    text = (ROOT / page).read_text()
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", text):
        other = ((ROOT / page).parent / target).read_text() if target else text
        if "://" not in target:
            assert anchor in {_anchor(title) for title in re.findall(r"^#+ (.+)$", other, re.MULTILINE)}, anchor


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_every_page_can_be_reached_from_the_index() -> None:
    seen, todo = set(), [ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop().resolve()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
            todo += [page.parent / link for link in links if "://" not in link]
    assert [page for page in PAGES if (ROOT / page).resolve() not in seen] == []
