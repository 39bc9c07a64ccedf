"""Hearing of commits in other processes: they wake this process's relay, which would find the messages by looking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from jfast_sync.loop import Deadline, Loop

__all__ = ["Bell", "Listener", "Listening"]

_LONGEST: Final = 60.0  # seconds in one wait; a broken connection is noticed when it is drained
_DEAF: Final = 1.0  # seconds until it is tried again to hear anything


class Listener(Protocol):
    """Where other processes' notifications arrive."""

    def prepare(self) -> int | None:
        """Be ready to hear; return the descriptor to wait on, None for none at present."""
        ...

    def drain(self) -> None:
        """Take in what arrived."""
        ...

    def close(self) -> None: ...


class Bell(Protocol):
    """What ends a wait in this process."""

    def wait(self, seconds: float, other: int | None) -> bool:
        """Wait until rung, or ``other`` is readable, or the time is over; return whether to stop waiting."""
        ...

    def stop_waiting(self) -> None: ...

    def close(self) -> None: ...


class Listening:
    """A thread that wakes a relay whenever another process says that it has committed something.

    Args:
        listener: where notifications arrive; used by the thread only.
        bell: ends the thread's wait.
        wake: wakes the relay; from any thread.
    """

    def __init__(self, listener: Listener, bell: Bell, wake: Callable[[], None]) -> None:
        self._listener = listener
        self._bell = bell
        self._wake = wake
        self._loop = Loop("jfast-relay-ear", self._step)

    def start(self) -> None:
        """Start the thread; once."""
        self._loop.start()

    def stop(self) -> None:
        """Ask it to end; does not wait."""
        self._loop.stop()
        self._bell.stop_waiting()

    def join(self, deadline: Deadline) -> bool:
        """Wait for its end and close what it heard by; return whether it ended in time."""
        if not self._loop.join(deadline):
            return False
        self._listener.close()
        self._bell.close()
        return True

    def _step(self) -> float | None:
        heard_by = self._listener.prepare()
        stopped = self._bell.wait(_DEAF if heard_by is None else _LONGEST, heard_by)
        if stopped or self._loop.stopping:
            return None
        if heard_by is not None:
            self._listener.drain()
            self._wake()
        return 0.0
