"""How commands print: JSON, tables, and times as people say them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

__all__ = ["age", "indented", "iso", "plain", "print_json", "print_table", "seconds_text"]


def print_json(value: Any) -> None:
    """Print a value as JSON: nothing else goes to stdout under ``--json``."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in aligned columns; numbers stand to the right."""
    body = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *body, strict=True)]
    right = [bool(body) and all(_is_number(row[at]) for row in body) for at in range(len(headers))]
    for row in [list(headers), *body]:
        cells = (
            text.rjust(width) if r else text.ljust(width) for text, width, r in zip(row, widths, right, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def iso(moment: datetime | None) -> str | None:
    """Write a moment as ISO 8601 in UTC."""
    return moment.astimezone(UTC).isoformat() if moment is not None else None


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Say how far a moment is from now: ``3 m ago``, ``in 20 s``; an empty text for None."""
    if moment is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    return f"in {seconds_text(-seconds)}" if seconds < -0.5 else f"{seconds_text(max(seconds, 0))} ago"


def seconds_text(seconds: float) -> str:
    """Say a length of time in its largest fitting unit: ``20 ms``, ``0.4 s``, ``59 s``, ``12 m``, ``5 h``, ``3 d``."""
    if 0 < seconds < 0.0995:
        return f"{max(seconds * 1000, 1):.0f} ms"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size or (unit != "d" and seconds >= size):
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"


def plain(text: str) -> str:
    """Take out what could steer a terminal: stored texts come from anywhere."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def indented(text: str) -> str:
    """Put four spaces before every line of a stored text."""
    return "\n".join("    " + line for line in plain(text).splitlines())


def _cell(value: object) -> str:
    return "" if value is None else plain(" ".join(str(value).split()))


def _is_number(text: str) -> bool:
    return text.replace(",", "").isdigit()
