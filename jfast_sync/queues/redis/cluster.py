"""Finding the node of a cluster that keeps the queue: all its keys are in one slot, so it is one node at a time."""

from __future__ import annotations

from typing import Any, Final

from redis import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import MovedError
from redis.exceptions import TimeoutError as TooLate

__all__ = ["NodeClient", "NodePool", "WaitingPool"]

_REMEMBERED: Final = 16


class WaitingPool(BlockingConnectionPool):
    """A pool with a place for a caller to wait in, which also knows its idle connections."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close all connections, or those that nobody uses: before redis-py 7 the library's cannot tell them apart."""
        if inuse_connections:
            super().disconnect()
            return
        for connection in list(self.pool.queue):
            if connection is not None:
                connection.disconnect()


class NodePool(WaitingPool):
    """Connections to the node that was named last; to another known one where that cannot be reached.

    Outside a cluster there is the one that the URL names.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        settings = self.connection_kwargs
        self.nodes: tuple[tuple[str, int], ...] = ()
        if "path" not in settings:
            self.nodes = ((settings.get("host", "localhost"), int(settings.get("port", 6379))),)
            self.connection_class = _finding(self.connection_class, self)

    def follow(self, moved: MovedError) -> None:
        """Connect to the node that a cluster has named; connections that are in use are told by themselves."""
        self._prefer((moved.host or self.nodes[0][0], moved.port))
        self.disconnect(inuse_connections=False)

    def _prefer(self, node: tuple[str, int]) -> None:
        self.nodes = (node, *(known for known in self.nodes if known != node))[:_REMEMBERED]

    def connect(self, connection: Any, connect: Any) -> None:
        """Connect to the first known node that takes the connection."""
        nodes = self.nodes
        for number, node in enumerate(nodes):
            connection.host, connection.port = node
            try:
                connect(connection)
            except (Unreachable, TooLate):
                if number == len(nodes) - 1:
                    raise
            else:
                if number:
                    self._prefer(node)
                return


def _finding(kind: type[Any], nodes: NodePool) -> type[Any]:
    """Return this kind of connection, connecting as ``nodes`` says."""

    def connect(connection: Any) -> None:
        if connection._sock is None:
            nodes.connect(connection, kind.connect)

    return type(kind.__name__, (kind,), {"connect": connect})


class NodeClient(Redis):
    """A client that asks again where a cluster says that the keys are on another node: nothing was done on this one."""

    def execute_command(self, *words: Any, **options: Any) -> Any:
        """Run one command."""
        try:
            return super().execute_command(*words, **options)  # type: ignore[no-untyped-call]
        except MovedError as moved:
            if not isinstance(self.connection_pool, NodePool):
                raise
            self.connection_pool.follow(moved)
            return super().execute_command(*words, **options)  # type: ignore[no-untyped-call]
