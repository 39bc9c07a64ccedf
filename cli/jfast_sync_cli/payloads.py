"""Reading payloads that people wrote: strict JSON objects, with an error that says where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

__all__ = ["read_argument", "read_object"]


def read_argument(argument: str | None) -> dict[str, Any]:
    """Read the payload of one job: JSON, ``@file``, ``-`` for the standard input, or nothing for an empty one.

    Raises:
        click.ClickException: it cannot be read, or is not a JSON object.
    """
    match argument:
        case None:
            return {}
        case "-":
            return read_object(sys.stdin.buffer.read(), "standard input")
        case str() if argument.startswith("@"):
            return read_object(_file(argument[1:]), argument[1:])
        case _:
            return read_object(argument.encode("utf-8", "surrogateescape"), "the payload")


def read_object(body: bytes, place: str) -> dict[str, Any]:
    """Read one JSON object.

    Args:
        body: UTF-8 text.
        place: how to call it in an error.

    Raises:
        click.ClickException: it is anything else; a key that occurs twice, NaN and Infinity are refused too.
    """
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        raise click.ClickException(f"{place} is not UTF-8 text (byte {exc.start + 1})") from None
    except json.JSONDecodeError as exc:
        at = f"line {exc.lineno}, column {exc.colno}" if "\n" in exc.doc.strip() else f"column {exc.colno}"
        raise click.ClickException(f"{place} is not JSON: {exc.msg} at {at}{_near(exc)}{_instead(exc.doc)}") from None
    except RecursionError:
        raise click.ClickException(f"{place} is nested too deeply") from None
    except ValueError as exc:
        if "integer string conversion" in str(exc):
            raise click.ClickException(f"{place} holds a number of too many digits; write it as a text") from None
        raise click.ClickException(f"{place} is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise click.ClickException(f'{place} must be a JSON object such as {{"id": 7}}, not {_kind(value)}')
    return value


def _instead(text: str) -> str:
    """What to write, where the text is not even meant to be an object."""
    return "" if text.lstrip().startswith("{") else """; write an object such as '{"id": 7}'"""


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise click.ClickException(f"{path} cannot be read: {exc.strerror}") from exc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} occurs twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _near(error: json.JSONDecodeError) -> str:
    text = error.doc[error.pos : error.pos + 20]
    return f", near {text!r}" if text.strip() else ""


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
