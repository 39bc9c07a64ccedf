"""How an idle claimer waits: one blocking pop on a connection of its own, ended early by a pipe."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.loop import Deadline
from jfast_sync.queues.redis.connect import LONGEST_BLOCK
from jfast_sync.queues.sql_wake import Doorbell

if TYPE_CHECKING:
    from redis import ConnectionPool

__all__ = ["Waiting"]

_SHORTEST: Final = 0.002  # seconds; Redis 6 takes 0.001 for 0, which is for ever
_SLACK: Final = 5.0  # seconds the server's answer may come late


class Waiting:
    """The claiming thread's wait; only :meth:`stop_waiting` is for others, signal handlers too.

    Args:
        pool: where the connection comes from.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self.longest = LONGEST_BLOCK
        self._connection: Any = None
        self._open_bell()

    def _open_bell(self) -> None:
        self._pid = os.getpid()
        self._bell = Doorbell()

    def stop_waiting(self) -> None:
        """End the present wait, or the next one."""
        self._after_fork()
        self._bell.stop_waiting()

    def rung(self) -> bool:
        """Say whether somebody has asked to stop waiting since the last wait."""
        self._after_fork()
        return self._bell.wait(0.0, None)

    def wait(self, keys: Sequence[str], seconds: float) -> tuple[bool, bool]:
        """Wait for a token in one of ``keys``; return whether asked to stop waiting, and whether a token came.

        Raises:
            RedisError: the server cannot be reached, or not any more.
        """
        self._after_fork()
        pause = min(max(seconds, _SHORTEST), self.longest)
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.get_connection()
        answered = False
        try:
            connection.send_command("BLPOP", *keys, f"{pause:.3f}")
            if self._until_readable(connection, pause + _SLACK):
                return True, False
            token = connection.read_response()
            answered = True
            return False, token is not None
        finally:
            if not answered:
                # The pop is still waiting: without its connection the server forgets it, and it takes no token.
                self._let_go()

    def _until_readable(self, connection: Any, seconds: float) -> bool:
        """Wait for the server's answer; return whether the bell rang first."""
        deadline = Deadline(seconds)
        while True:
            socket = connection._sock
            if socket is None or (getattr(socket, "pending", None) is not None and socket.pending()):
                return False
            if self._bell.wait(deadline.remaining(), socket.fileno()):
                return True
            ready, _, _ = select.select([socket], [], [], 0)
            if ready or deadline.passed:
                return False

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._inherited = (self._bell, self._connection)  # the parent's: neither used nor closed here
            self._connection = None
            self._open_bell()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()
            with contextlib.suppress(Exception):
                self._pool.release(connection)

    def close(self) -> None:
        """Let go of the connection and the pipe."""
        self._after_fork()
        self._let_go()
        self._bell.close()
