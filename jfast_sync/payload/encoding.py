"""One walk over a payload that copies it into plain JSON and measures it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from jfast_sync.errors import PayloadError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "encode", "encode_value", "path_text"]

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 200
_SMALLEST_INT: Final = -(2**63)
_LARGEST_INT: Final = 2**64 - 1
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")
_WIDEST: Final = 6  # bytes one character may become: a control character is written \u001f
_HINTS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    ((bytes, bytearray, memoryview), "encode it, e.g. base64.b64encode(data).decode()"),
    ((set, frozenset), "give a list, e.g. sorted(...)"),
    (timedelta, "give seconds, e.g. delta.total_seconds()"),
    (time, "give text, e.g. value.isoformat()"),
    (complex, "give a list of two numbers"),
    (type, "give its name"),
)


def encode(payload: Any, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return a copy of the payload that is plain JSON: dicts, lists, strings, numbers, booleans and None only.

    Args:
        payload: a dict, another mapping or a dataclass instance.
        max_bytes: allowed size, as compact UTF-8 JSON.

    Raises:
        PayloadError: it cannot be stored; the message names the path, like ``payload.items[3].price``.
    """
    encoder = _Encoder(max_bytes)
    if not isinstance(payload, Mapping) and (isinstance(payload, type) or not dataclasses.is_dataclass(payload)):
        raise PayloadError(
            f"payload must be a JSON object (a dict with string keys), got {type(payload).__name__}; "
            'wrap it, like {"value": ...}'
        )
    try:
        plain: dict[str, Any] = encoder.value(payload)
        if encoder.most > max_bytes:
            _check_size(plain, max_bytes)
    except RecursionError:
        raise encoder.refused("nested too deeply for what is left of the Python stack") from None
    return plain


def encode_value(value: Any) -> Any:
    """Return one value as :func:`encode` would write it inside a payload; raises PayloadError likewise."""
    return _Encoder(MAX_BYTES).value(value)


def path_text(path: Iterable[str | int]) -> str:
    """Write a path inside a payload as code would: ``payload.items[3].price``, ``payload["two words"]``."""
    parts = ["payload"]
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _IDENTIFIER.fullmatch(step):
            parts.append(f".{step}")
        else:
            shown = step if len(step) <= 80 else step[:77] + "..."
            parts.append(f"[{json.dumps(shown)}]")
    if len(parts) > 40:
        parts[20:-10] = [" ... "]
    return "".join(parts)


def _check_size(plain: dict[str, Any], max_bytes: int) -> None:
    size = len(json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode())
    if size > max_bytes:
        raise _too_large(f"{size:,}", max_bytes)


def _too_large(size: str, max_bytes: int) -> PayloadError:
    return PayloadError(
        f"payload takes {size} bytes as JSON, where {max_bytes:,} are allowed; keep the data elsewhere and enqueue its "
        "key, or raise [plugin.queue] max_payload_bytes"
    )


class _Encoder:
    """One walk over a payload. Counts while it goes, so that what is too large costs no more than what is allowed.

    ``least`` and ``most`` bound the size in bytes as JSON; the exact size is computed only where they disagree.
    """

    def __init__(self, max_bytes: int) -> None:
        self.path: list[str | int] = []
        self.least = 0
        self.most = 0
        self._max_bytes = max_bytes
        self._open: set[int] = set()  # containers the walk is inside of

    def refused(self, reason: str) -> PayloadError:
        return PayloadError(f"{path_text(self.path)}: {reason}")

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value)
        if value is None or kind is bool:
            self._count(4, 5)
            return value
        if kind is int:
            return self._integer(value)
        if kind is float:
            return self._number(value)
        if kind is dict or kind is list:
            return self._container(value)
        return self._other(value)

    def _other(self, value: Any) -> Any:
        """Encode what is not of a JSON type itself; subclasses of those become plain."""
        match value:
            case Enum():
                return self.value(value.value)
            case datetime() | date() | UUID() | Decimal():
                return self._text(self._written(value))
            case str():
                return self._text(str.__str__(value))
            case int():
                return self._integer(int.__int__(value))
            case float():
                return self._number(float.__float__(value))
            case Mapping() | list() | tuple():
                return self._container(value)
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                return self._container(value)
            case _:
                raise self._unknown(value)

    def _written(self, value: datetime | date | UUID | Decimal) -> str:
        if isinstance(value, Decimal) and not value.is_finite():
            raise self.refused(f"{value} has no form in JSON; give None or text")
        if not isinstance(value, datetime):
            return str(value)
        if value.utcoffset() is None:
            raise self.refused(f"the datetime {value} has no time zone; give an aware one, e.g. datetime.now(UTC)")
        return value.isoformat()

    def _text(self, text: str) -> str:
        if not text.isascii() or "\x00" in text:
            self._check_characters(text)
        self._count(len(text) + 2, len(text) * _WIDEST + 2)
        return text

    def _check_characters(self, text: str) -> None:
        found = _UNSTORABLE.search(text)
        if found is None:
            return
        what = (
            "the NUL character" if found.group() == "\x00" else f"half of a surrogate pair (U+{ord(found.group()):04X})"
        )
        raise self.refused(f"the text holds {what} at character {found.start()}, which databases cannot store")

    def _integer(self, number: int) -> int:
        if not _SMALLEST_INT <= number <= _LARGEST_INT:
            raise self.refused(
                f"a whole number of {number.bit_length():,} bits; JSON readers hold 64, give larger ones as text"
            )
        self._count(1, 20)
        return number

    def _number(self, number: float) -> float:
        if not math.isfinite(number):
            raise self.refused(f"{number} has no form in JSON; give None or text")
        self._count(3, 25)
        return number

    def _container(self, value: Any) -> Any:
        if len(self.path) >= MAX_DEPTH:
            raise self.refused(f"nested more than {MAX_DEPTH} levels deep")
        if id(value) in self._open:
            raise self.refused("the payload contains itself")
        self._open.add(id(value))
        self._count(2, 2)
        plain = self._array(value) if isinstance(value, (list, tuple)) else self._object(value)
        self._open.discard(id(value))
        return plain

    def _array(self, items: list[Any] | tuple[Any, ...]) -> list[Any]:
        plain = []
        for index, item in enumerate(items):
            self.path.append(index)
            self._count(1 if index else 0, 1)
            plain.append(self.value(item))
            self.path.pop()
        return plain

    def _object(self, value: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in _entries(value):
            name = self._key(key, plain)
            self.path.append(name)
            self._count(2 if plain else 1, 2)
            self._text(name)
            plain[name] = self.value(item)
            self.path.pop()
        return plain

    def _key(self, key: Any, plain: dict[str, Any]) -> str:
        name = key.value if isinstance(key, Enum) and isinstance(key, str) else key
        if not isinstance(name, str):
            raise self.refused(f"the key {_shown(key)} is of type {type(key).__name__}; keys are strings")
        name = str.__str__(name)
        if name in plain:
            raise self.refused(f"two keys become {name!r:.80}")
        return name

    def _count(self, least: int, most: int) -> None:
        self.least += least
        self.most += most
        if self.least > self._max_bytes:
            raise _too_large("more", self._max_bytes)

    def _unknown(self, value: Any) -> PayloadError:
        hint = next((text for kinds, text in _HINTS if isinstance(value, kinds)), None)
        if hint is None:
            hint = "give value.model_dump()" if hasattr(value, "model_dump") else "give a dict, list, text or number"
        return self.refused(f"a {type(value).__name__} has no form in JSON; {hint}")


def _shown(key: object) -> str:
    try:
        return repr(key)[:80]
    except Exception:  # a whole number of 5,000 digits has no text, and a class of the caller's may raise anything
        return "without a text"


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    # A field that was never set is left out, and missed where the payload is read.
    return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value) if hasattr(value, each.name)]
