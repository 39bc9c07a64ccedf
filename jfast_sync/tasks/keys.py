"""Idempotency keys: typed texts, so that 1, "1", True and 1.0 are four keys."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

__all__ = ["typed_key"]


def typed_key(value: Any) -> str | None:
    """Return the key's text with its type in front: ``"int:7"``, ``"str:7"``, ``"tuple:(int:1,str:1:a)"``.

    None stands for "no key": the job is not idempotent and runs every time.

    Raises:
        ValueError: an empty key, which would be shared by every job that lacks one; or NaN, which equals no other.
        TypeError: a type without a stable text.
    """
    if value is None:
        return None
    if isinstance(value, (str, tuple, list)) and not value:
        raise ValueError(f"idempotent_on gave an empty key ({value!r}); return None for a job that may run every time")
    return _typed(value)


def _typed(value: Any) -> str:
    if isinstance(value, (float, Decimal)) and value != value:  # noqa: PLR0124 - what NaN is known by
        raise ValueError(f"idempotent_on gave {value} in a key; return None for a job that may run every time")
    match value:
        case bool():
            return f"bool:{str(value).lower()}"
        case int():
            return f"int:{int(value)}"
        case float():
            return f"float:{float(value)!r}"
        case str():
            return f"str:{str.__str__(value)}"
        case UUID():
            return f"uuid:{value}"
        case Decimal():
            return f"decimal:{value}"
        case datetime() | date():
            return f"{'datetime' if isinstance(value, datetime) else 'date'}:{value.isoformat()}"
        case tuple() | list():
            return f"tuple:({','.join(_part(item) for item in value)})"
        case _:
            raise TypeError(
                f"idempotent_on gave a {type(value).__name__}; a key is a string, a number, a UUID, a date, or a tuple "
                "of these"
            )


def _part(item: Any) -> str:
    # The length in front keeps ("a,str:b",) and ("a", "b") apart.
    text = "none:" if item is None else _typed(item)
    return f"{len(text)}:{text}"
