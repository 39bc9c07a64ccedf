"""A Redis cluster on this machine: three masters, and a replica of the one that keeps a key."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from tests.servers.network import HOST, can_bind, free_port
from tests.servers.redis import RedisServer
from tests.servers.redis_local import LocalRedis, find_program
from tests.waiting import eventually

SLOTS = 16_384
_MASTERS = 3


class RedisCluster:
    """Inside the `with` block: `owner` keeps `key`'s slot, `replica` follows it, `others` keep the other slots.

    Args:
        key: the key that `owner` is to keep.
        old: the program is older than Redis 7, whose second port cannot be chosen.
    """

    def __init__(self, key: str, *, old: bool = False) -> None:
        self._key = key
        self._program = find_program()
        self._old = old
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            servers = [self._started(stack) for _ in range(_MASTERS + 1)]
            first, *rest = servers
            for server in rest:
                first.command("CLUSTER", "MEET", HOST, server.port, *self._second_port(server))
            for number, server in enumerate(servers[:_MASTERS]):
                server.command("CLUSTER", "ADDSLOTS", *range(number, SLOTS, _MASTERS))
            for server in servers:
                wait_for_cluster(server)
            at = int(first.command("CLUSTER", "KEYSLOT", self._key)) % _MASTERS
            self.owner, self.replica = servers[at], servers[-1]
            self.others: list[RedisServer] = [*servers[:at], *servers[at + 1 : -1]]
            self._follow()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def replicate(self) -> None:
        """Return when the replica has all that the owner had accepted."""
        with self.owner.client() as client:
            client.execute_command("SET", self._key + ":replicated", "until here")
            assert client.execute_command("WAIT", 1, 10_000) == 1

    def fail_over(self) -> None:
        """Kill the owner and make its replica the owner; on a busy machine none is to be promoted before that."""
        self.owner.kill()
        self.replica.command("CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: self.replica.command("ROLE")[0] == b"master", 20, what="the replica to be promoted")

    def _started(self, stack: ExitStack) -> LocalRedis:
        second = {} if self._old else {"cluster-port": str(free_port())}
        settings = {"cluster-enabled": "yes", "cluster-replica-no-failover": "yes", "repl-diskless-sync-delay": "0"}
        while True:
            server = LocalRedis(self._program, **settings, **second)
            stack.callback(server.close)
            if not self._old or can_bind(server.port + 10_000):
                server.start()
                return server

    def _second_port(self, server: LocalRedis) -> tuple[str, ...]:
        return () if self._old else (server.settings["cluster-port"],)

    def _follow(self) -> None:
        name = text(self.owner.command("CLUSTER", "MYID"))
        # It may not have heard of the owner yet.
        eventually(
            lambda: name in text(self.replica.command("CLUSTER", "NODES")), what="the replica to know its master"
        )
        self.replica.command("CLUSTER", "REPLICATE", name)
        eventually(
            lambda: self.replica.command("INFO", "replication").get("master_link_status") == "up",
            20,
            what="the replica to follow",
        )


def wait_for_cluster(server: RedisServer) -> None:
    """Return when this node takes the cluster for complete."""
    eventually(lambda: "cluster_state:ok" in text(server.command("CLUSTER", "INFO")), 20, what="the cluster to be up")


def text(answer: Any) -> str:
    """What a server said of a cluster, whatever redis-py makes of it."""
    if isinstance(answer, dict):
        return "\n".join(f"{name}:{value}" for name, value in answer.items())
    return answer.decode() if isinstance(answer, bytes) else str(answer)
