"""From what a source holds to a key's value: types, bounds and forms."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from .forms import nearest
from .keys import Key

__all__ = ["bounds_text", "read_value", "shown"]

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST_TEXT = 10_000


def read_value(key: Key, raw: object, *, textual: bool) -> Any:
    """Check one value and give it the key's type.

    ``textual`` values come from the environment, where everything is a text: numbers, true/false
    and comma lists are read from it. Raises ValueError that says what is wanted.
    """
    if textual and key.kind is not str:
        raw = _from_text(key, str(raw))
    value = _typed(key, raw)
    if value is None:
        return None
    _check_bounds(key, value)
    if key.choices:
        value = _choice(key, value)
    if key.check is not None and (wanted := key.check(value)) is not None:
        raise ValueError(wanted)
    return value


def bounds_text(key: Key) -> str:
    """What the key accepts, in words."""
    if key.choices:
        return ", ".join(key.choices)
    least, most = (
        None if bound is None else f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in (key.least, key.most)
    )
    span = (
        f"{least} to {most}" if least and most else f"at least {least}" if least else f"at most {most}" if most else ""
    )
    return span or key.form


def shown(raw: object) -> str:
    """A value as messages show it: the way the file writes it, shortened."""
    text = json.dumps(raw, default=str, ensure_ascii=False)
    return text if len(text) <= 100 else text[:96] + " ..."


def _from_text(key: Key, text: str) -> object:
    text = text.strip()
    if key.kind is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key.kind is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
    elif key.kind is int:
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            return int(text)
    elif re.fullmatch(r"[+-]?([0-9]{1,18}(\.[0-9]*)?|\.[0-9]+)", text):
        return float(text)
    raise ValueError(_wanted(key))


def _typed(key: Key, raw: object) -> Any:
    if key.kind is float:
        if isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < 1e18 and math.isfinite(raw):
            return float(raw)
    elif key.kind is tuple:
        if isinstance(raw, list | tuple) and all(isinstance(part, str) for part in raw):
            return tuple(dict.fromkeys(_plain_text(part) for part in raw))
    elif key.kind is str:
        if isinstance(raw, str):
            return _plain_text(raw) or (None if key.optional else "")
    elif isinstance(raw, key.kind) and (key.kind is bool or not isinstance(raw, bool)):
        return raw
    raise ValueError(_wanted(key))


def _plain_text(text: str) -> str:
    if _UNPRINTABLE.search(text) or len(text) > _LONGEST_TEXT:
        raise ValueError(f"must be a text without control characters, of at most {_LONGEST_TEXT} characters")
    return text


def _wanted(key: Key) -> str:
    number = f"a number{f' of {key.unit}' if key.unit else ''}"
    words = {
        bool: "true or false",
        int: f"a whole number{f' of {key.unit}' if key.unit else ''}",
        float: number,
        str: "a text",
        tuple: "a list of texts",
    }
    return f"must be {words[key.kind]}"


def _check_bounds(key: Key, value: Any) -> None:
    too_low = key.least is not None and value < key.least
    too_high = key.most is not None and value > key.most
    if too_low or too_high:
        raise ValueError(f"must be {bounds_text(key)}{f' {key.unit}' if key.unit else ''}")


def _choice(key: Key, value: str) -> str:
    for choice in key.choices:
        if choice.lower() == value.lower():
            return choice
    raise ValueError(f"must be one of {', '.join(key.choices)}{nearest(value, key.choices)}")
