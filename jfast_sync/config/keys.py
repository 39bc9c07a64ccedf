"""One declaration per key: its type stands on the dataclass, everything else in the field's metadata.

Loading, checking, ``config show`` and the reference page are all derived from these declarations,
so that a key is written down once.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from jfast_sync.redact import MASK, mask_dsn

__all__ = ["Key", "Table", "key"]

Check = Callable[[Any], "str | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the configuration: where it stands, what it accepts, what it means."""

    table: str
    """The table's short name, such as ``queue``."""
    name: str
    kind: type
    """One of bool, int, float, str and tuple (of str)."""
    optional: bool
    default: Any
    meaning: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    check: Check | None = None
    form: str = ""
    """What ``check`` wants, in words, for the reference page."""
    secret: str = ""
    """``"url"`` where only the password inside is secret, ``"all"`` where the whole value is."""
    shown_default: str = ""
    environment: tuple[str, ...] = ()
    """Names in the environment; the first is the one to use."""

    def show(self, value: Any) -> Any:
        """The value as it may be shown: secrets are masked."""
        if self.secret and value:
            return mask_dsn(str(value)) if self.secret == "url" else MASK
        return list(value) if isinstance(value, tuple) else value


def key(default: Any, meaning: str, /, **rules: Any) -> Any:
    """Declare a key of a table: its default, what it means, and the rules a value must keep."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, **rules})


class Table:
    """A table of the configuration; subclasses are frozen dataclasses whose fields are made by :func:`key`."""

    __slots__ = ()
    prefixes: ClassVar[tuple[str, ...]] = ()
    """What the environment's names start with after ``JFAST_``; the first is the one to use."""

    @classmethod
    def short_name(cls) -> str:
        return cls.__name__.lower()

    @classmethod
    def title(cls) -> str:
        """The table's name as the file writes it, such as ``plugin.queue``."""
        short = cls.short_name()
        return short if short in ("app", "plugins") else f"plugin.{short}"

    @classmethod
    def keys(cls) -> dict[str, Key]:
        hints = typing.get_type_hints(cls)
        return {field.name: _key_of(cls, field, hints[field.name]) for field in dataclasses.fields(_as_dataclass(cls))}

    def __repr__(self) -> str:
        shown = (f"{name}={entry.show(getattr(self, name))!r}" for name, entry in self.keys().items())
        return f"{type(self).__name__}({', '.join(shown)})"


def _as_dataclass(table: type[Table]) -> Any:
    return table


def _key_of(table: type[Table], field: dataclasses.Field[Any], hint: Any) -> Key:
    rules = dict(field.metadata)
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(member for member in members if member is not type(None))
    generated = tuple(f"JFAST_{prefix}_{field.name.upper()}" for prefix in table.prefixes)
    return Key(
        table=table.short_name(),
        name=field.name,
        kind=typing.get_origin(kind) or kind,
        optional=type(None) in members,
        default=field.default,
        environment=(*rules.pop("also", ()), *generated),
        **rules,
    )
