"""What kind of server it is, and what about it endangers jobs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from jfast_sync.errors import UnavailableError

__all__ = ["Server"]

_OLDEST: Final = (6, 2)


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it describes itself."""

    version: str
    policy: str
    append_only: bool
    snapshots: bool

    @classmethod
    def read(cls, command: Callable[..., Any]) -> Self:
        """Ask the server, by ``command``; what a managed service hides is taken to be well."""
        info: Mapping[str, Any] = {}
        for section in ("server", "memory", "persistence"):
            info = {**info, **command("INFO", section)}
        append_only = str(info.get("aof_enabled", 0)) == "1"
        return cls(
            version=str(info.get("redis_version", "0")),
            policy=str(info.get("maxmemory_policy", "noeviction")),
            append_only=append_only,
            snapshots=append_only or _snapshots(command),
        )

    def check_version(self) -> None:
        """Refuse a server that lacks what the scripts need.

        Raises:
            UnavailableError: it is older than 6.2.
        """
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])
        if numbers < _OLDEST:
            raise UnavailableError(f"Redis 6.2 or newer, or Valkey, is needed; this server is {self.version}")

    @property
    def remarks(self) -> tuple[str, ...]:
        """What endangers jobs, a sentence each."""
        found = []
        if self.policy != "noeviction":
            found.append(
                f"Redis may throw jobs away when memory is short: its maxmemory-policy is {self.policy}; "
                "set it to noeviction"
            )
        if not self.append_only and not self.snapshots:
            found.append("Redis keeps jobs in memory only and loses them when it stops; set appendonly to yes")
        return tuple(found)


def _snapshots(command: Callable[..., Any]) -> bool:
    """Say whether the server writes snapshots; taken for granted where it does not say."""
    with contextlib.suppress(UnavailableError):
        found = command("CONFIG", "GET", "save")
        values = list(found.values()) if isinstance(found, Mapping) else list(found or ())[1::2]
        if values:
            return bool(values[0])
    return True
