"""The queue on a Redis or Valkey server: durable as far as the server is, shared by any number of processes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jfast_sync.errors import SchemaError
from jfast_sync.queues.redis.claims import Claims
from jfast_sync.queues.redis.inspection import RedisInspection
from jfast_sync.queues.redis.leases import Leases
from jfast_sync.queues.redis.lua_upkeep import SETUP
from jfast_sync.queues.redis.server import Server

__all__ = ["RedisQueue"]

log = logging.getLogger("jfast_sync.queues.redis")

_FORMAT: Final = 1
_REMARKS_LAST: Final = 60.0


class RedisQueue(Leases, Claims, RedisInspection):
    """Jobs in sorted sets and hashes, moved by scripts, fenced by a token per claim.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``redis+sentinel://host:port,host:port/service/db``.
        name: the queue's name; all its keys are ``key_prefix + {name}:...``.
        key_prefix: put before every key.
        visibility_timeout: seconds a lease runs; renewed while the job runs.
        keep_done: seconds finished jobs are kept; 0 deletes them at once.
        max_connections: connections this process keeps at most; one more caller waits up to 5 seconds.
        tls: redis-py's ``ssl_*`` options, for ``rediss://``.

    Raises:
        MissingDriverError: redis-py is not installed.
        ConfigError: the URL cannot be read.
    """

    backend: str = "redis"

    def __init__(
        self,
        url: str,
        *,
        name: str = "jfast:jobs",
        key_prefix: str = "",
        visibility_timeout: float = 60.0,
        keep_done: float = 0.0,
        max_connections: int = 64,
        tls: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            url,
            name=name,
            key_prefix=key_prefix,
            visibility_timeout=visibility_timeout,
            max_connections=max_connections,
            tls=tls or {},
        )
        self.keep_done = keep_done
        self._open_leases()
        self._open_waiting()
        self._told: tuple[str, ...] = ()
        self._remarked: tuple[float, tuple[str, ...]] | None = None

    def setup(self) -> None:
        """Look at the server and the keys; create nothing that is not needed.

        Raises:
            UnavailableError: the server cannot be reached, or is too old.
            SchemaError: a key of the queue is somebody else's, or newer than this library.
        """
        server = self._server()
        server.check_version()
        self._load_lanes()
        found = int(self._ask(SETUP, self._lanes, _FORMAT, self._lease_time))
        if found > _FORMAT:
            raise SchemaError(f"the queue {self.keys.name} was written by a newer jfast-sync (format {found}); update")
        for remark in self._noted(server):
            if remark not in self._told:
                log.warning("%s", remark)
        self._told = self._noted(server)

    def close(self) -> None:
        """End a waiting claim and let go of every connection."""
        self._waiting.close()
        self._pool.disconnect()

    def erase(self) -> None:
        """Remove the queue with every job in it, a part at a time."""
        pattern = _pattern(self.keys.prefix + "{" + self.keys.name + "}:") + "*"
        cursor: Any = 0
        while True:
            cursor, names = self._command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for name in names:
                self._command("UNLINK", name)
            if int(cursor) == 0:
                return

    def _server(self) -> Server:
        return Server.read(self._command)

    def _noted(self, server: Server) -> tuple[str, ...]:
        self._remarked = time.monotonic(), server.remarks
        return server.remarks

    def _remarks(self) -> Sequence[str]:
        if self._remarked is None or time.monotonic() - self._remarked[0] > _REMARKS_LAST:
            return self._noted(self._server())
        return self._remarked[1]


def _pattern(text: str) -> str:
    """Return the pattern that matches this text only."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)
