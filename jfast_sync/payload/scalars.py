"""Single values read back from JSON: strict about types, so that a text is never taken for a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

__all__ = ["SCALARS", "kind_of"]


def kind_of(value: Any) -> str:
    """Name a JSON value's kind for a message, never the value itself: it may be a secret."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction"
        case str():
            return "a text" if value else "an empty text"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def _exactly(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return read


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _decimal(value: Any) -> Decimal:
    # Not from a float: 0.1 would come out with 55 digits.
    number = Decimal(value) if type(value) is int else Decimal(_text(value))
    if not number.is_finite():
        raise ValueError
    return number


def _instant(value: Any) -> datetime:
    instant = datetime.fromisoformat(_text(value))
    if instant.utcoffset() is None:
        raise ValueError
    return instant


#: Type -> how to read it, and what to call it where it does not fit.
SCALARS: Final[dict[Any, tuple[Callable[[Any], Any], str]]] = {
    bool: (_exactly(bool), "true or false"),
    int: (_exactly(int), "a whole number"),
    float: (_float, "a number"),
    str: (_text, "a text"),
    Decimal: (_decimal, "a decimal number as text"),
    UUID: (lambda value: UUID(_text(value)), "a UUID"),
    datetime: (_instant, "a date and time with time zone, in ISO 8601"),
    date: (lambda value: date.fromisoformat(_text(value)), "a date in ISO 8601"),
}
