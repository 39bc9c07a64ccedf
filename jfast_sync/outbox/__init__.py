"""Messages written in the caller's transaction: they exist if and only if it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jfast_sync.inbox import claim_once

__all__ = ["claim_once"]


def __getattr__(name: str) -> Any:
    # Found when asked for: the inbox needs SQLAlchemy, which `import jfast_sync` does not load.
    if name == "claim_once":
        from jfast_sync.inbox import claim_once

        return claim_once
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
