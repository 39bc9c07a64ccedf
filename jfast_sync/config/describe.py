"""The configuration as rows, for ``config show`` and the reference page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .keys import Key
from .sources import Origin
from .tables import TABLES
from .values import bounds_text, shown

if TYPE_CHECKING:
    from .load import Config

__all__ = ["Row", "reference", "rows"]

_TYPES = {bool: "true/false", int: "whole number", float: "number", str: "text", tuple: "list of texts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One key as ``config show`` prints it. Values fit JSON; secrets are masked."""

    table: str
    key: str
    value: Any
    default: Any
    origin: Origin
    environment: str
    meaning: str


def rows(config: Config) -> list[Row]:
    return [
        Row(
            table=table.title(),
            key=key.name,
            value=key.show(getattr(getattr(config, key.table), key.name)),
            default=key.show(key.default),
            origin=config.origins.get((key.table, key.name), "default"),
            environment=key.environment[0],
            meaning=key.meaning,
        )
        for table in TABLES
        for key in table.keys().values()
    ]


def reference() -> str:
    """The reference page's tables, in Markdown."""
    parts: list[str] = []
    for table in TABLES:
        parts += [f"## [{table.title()}]", "", (table.__doc__ or "").strip(), ""]
        parts += ["| key | type | default | accepts | environment | meaning |", "|---|---|---|---|---|---|"]
        parts += [_line(key) for key in table.keys().values()]
        parts.append("")
    return "\n".join(parts)


def _line(key: Key) -> str:
    unit = f", {key.unit}" if key.unit else ""
    cells = (
        f"`{key.name}`",
        f"{_TYPES[key.kind]}{unit}",
        _default(key),
        bounds_text(key),
        ", ".join(f"`{name}`" for name in key.environment),
        key.meaning,
    )
    return f"| {' | '.join(cells)} |"


def _default(key: Key) -> str:
    if key.shown_default or key.default is None:
        return key.shown_default or "none"
    whole = isinstance(key.default, float) and key.default.is_integer()
    return f"`{shown(int(key.default) if whole else key.default)}`"
