"""Flask: ``from jfast_sync.flask import JFast``."""

from __future__ import annotations

from jfast_sync.web.extension import JFast, get_session

__all__ = ["JFast", "get_session"]
