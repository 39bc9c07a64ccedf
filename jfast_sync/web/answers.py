"""One HTTP answer of ours as a value: Flask, WSGI and the probe each send it in their own way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

__all__ = ["JSON", "PROBLEM", "Answer"]

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a JSON body and its content type; never to be cached."""

    status: int
    body: Mapping[str, Any]
    content_type: str = JSON

    def encoded(self) -> bytes:
        return (json.dumps(self.body, ensure_ascii=False, default=str) + "\n").encode(errors="replace")

    @property
    def status_line(self) -> str:
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Everything but the length, which whoever sends it knows best."""
        return [("Content-Type", self.content_type), ("Cache-Control", "no-store")]
