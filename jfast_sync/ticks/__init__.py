"""Where claimed ticks are written: each module implements ``jfast_sync.ports.TickStore``."""

from __future__ import annotations
