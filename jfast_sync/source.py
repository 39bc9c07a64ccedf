"""How to build the same app again in another process: what a worker hands to the child that runs a job alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

__all__ = ["Overrides", "Source"]

Overrides = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The arguments of :func:`jfast_sync.app.load`; JSON in between."""

    target: str | None = None
    config_path: str | None = None
    imports: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        data: dict[str, Any] = json.loads(text)
        return cls(**{**data, "imports": tuple(data["imports"])})
