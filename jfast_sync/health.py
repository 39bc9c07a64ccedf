"""What ``/ready`` says of one thing: a value, made by whoever owns the thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Check", "Health"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One check's answer.

    ``critical`` says whether "unavailable" makes the whole service unavailable (503): database or queue
    unreachable, schema missing. Everything else is at most degraded.
    """

    status: Literal["ok", "degraded", "unavailable"] = "ok"
    detail: str = ""
    critical: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Check:
    """A question ``/ready`` asks, and whether having no answer makes the service unavailable."""

    ask: Callable[[], Health]
    critical: bool = False

    def __call__(self) -> Health:
        return self.ask()
