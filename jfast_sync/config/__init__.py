"""What is configured: one frozen dataclass per table of ``jfast.toml``, loaded and checked once.

Read in the order ``tables`` (every key), ``sources`` (file, environment, flags), ``values`` (types
and bounds), ``rules`` (keys that depend on each other), ``load`` (all of it together).
"""

from __future__ import annotations

from .describe import Row, reference
from .load import FILE_NAME, Config, load_config
from .tables import (
    BACKENDS,
    PLUGINS,
    App,
    Cache,
    Database,
    Events,
    Observability,
    Outbox,
    Plugins,
    Queue,
)

__all__ = [
    "BACKENDS",
    "FILE_NAME",
    "PLUGINS",
    "App",
    "Cache",
    "Config",
    "Database",
    "Events",
    "Observability",
    "Outbox",
    "Plugins",
    "Queue",
    "Row",
    "load_config",
    "reference",
]
