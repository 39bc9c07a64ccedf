"""A Redis, its replica, and a Sentinel that promotes the replica when the first one is gone."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.network import HOST, free_port
from tests.servers.processes import forget, register
from tests.servers.redis_local import LocalRedis, find_program
from tests.waiting import eventually


class RedisPair:
    """Two servers of our own; inside the `with` block the second one follows the first.

    Args:
        folder: where a Sentinel may write; without one there is none, and `promote` is called by hand.
        down_after: seconds the first server may be silent before the Sentinel acts.
    """

    def __init__(self, folder: Path | None = None, *, down_after: float = 0.5) -> None:
        program = find_program()
        at_once = {"repl-diskless-sync-delay": "0"}
        self.first, self.second = LocalRedis(program, **at_once), LocalRedis(program, **at_once)
        self.sentinel_port = free_port()
        self._program = program
        self._folder = folder
        self._down_after = down_after
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in (self.first, self.second):
                stack.callback(server.close)
                server.start()
            self.second.command("REPLICAOF", HOST, str(self.first.port))
            eventually(self._linked, what="the replica to follow")
            if self._folder is not None:
                self._watch(self._folder, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The Sentinel's; one of the Sentinels it names is not there."""
        return f"redis+sentinel://{HOST}:{free_port()},{HOST}:{self.sentinel_port}/jobs/0"

    def replicate(self) -> None:
        """Return when the replica has all that the first one had accepted."""
        with self.first.client() as client:
            client.execute_command("SET", "replicated", "until here")
            assert client.execute_command("WAIT", 1, 10_000) == 1

    def master(self) -> int | None:
        """The port of the server the Sentinel names; None while it knows none."""
        with redis.Redis(host=HOST, port=self.sentinel_port, retry=Retry(NoBackoff(), 0), protocol=2) as client:
            try:
                found: Any = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "jobs")
            except redis.ConnectionError:
                return None
        return int(found[1]) if found else None

    def promote(self) -> None:
        """Make the replica a master."""
        self.second.command("REPLICAOF", "NO", "ONE")

    def _linked(self) -> bool:
        return bool(self.second.command("INFO", "replication").get("master_link_status") == "up")

    def _watch(self, folder: Path, stack: ExitStack) -> None:
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            f"bind {HOST}\nport {self.sentinel_port}\ndir {folder}\n"
            f"sentinel monitor jobs {HOST} {self.first.port} 1\n"
            f"sentinel down-after-milliseconds jobs {self._down_after * 1000:.0f}\n"
            "sentinel failover-timeout jobs 3000\n"
        )
        with (folder / "sentinel.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self._program), str(configuration), "--sentinel"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        register(process.pid)
        stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    forget(process.pid)
