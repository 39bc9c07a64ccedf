"""Finding what a test leaves behind: threads, child processes, open database connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from tests.servers.processes import is_server, kill_tree
from tests.waiting import eventually

GRACE_SECONDS = 2.0
# Started by the standard library on first use, once per process, and ended by it at exit.
_STANDARD_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

_self = psutil.Process()


def leftover_threads(before: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Threads that were not there `before` and have not ended after being joined for a moment."""
    deadline = time.monotonic() + GRACE_SECONDS
    known = set(before)
    # A thread made by foreign code (Thread-less, "Dummy") cannot be joined and holds nothing of ours.
    fresh = [t for t in threading.enumerate() if t not in known and not isinstance(t, threading._DummyThread)]
    for thread in fresh:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in fresh if thread.is_alive()]


def leftover_children() -> list[str]:
    """Describe, and end, child processes that are neither a server of the session nor the standard library's."""
    found = []
    for child in _self.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if not is_server(child.pid) and not _is_standard(child):
                found.append(_describe(child))
                kill_tree(child)
                child.wait(timeout=GRACE_SECONDS)
    return found


def _is_standard(child: psutil.Process) -> bool:
    if child.status() == psutil.STATUS_ZOMBIE:
        return False
    command = " ".join(child.cmdline())
    return any(name in command for name in _STANDARD_CHILDREN)


def _describe(child: psutil.Process) -> str:
    if child.status() == psutil.STATUS_ZOMBIE:
        return f"pid {child.pid} ({child.name()}; it has ended, but nobody waited for it)"
    return f"pid {child.pid} ({' '.join(child.cmdline())[:200]})"


def wait_for_no_connection_to(port: int) -> None:
    """Fail when this process still holds a connection to `port`: an engine not disposed, a connection not closed."""
    eventually(
        lambda: _connections_to(port),
        GRACE_SECONDS,
        until=lambda found: not found,
        what="this test to close its database connections (dispose every engine it made)",
    )


def _connections_to(port: int) -> list[str]:
    open_states = (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)
    found = [c for c in _self.net_connections(kind="tcp") if c.status in open_states]
    return [f"{c.laddr} -> {c.raddr}" for c in found if getattr(c.raddr, "port", None) == port]


def wait_for_no_open_file(path: Path) -> None:
    """Fail when this process still has `path` open."""
    eventually(
        lambda: [file.fd for file in _self.open_files() if Path(file.path) == path.resolve()],
        GRACE_SECONDS,
        until=lambda found: not found,
        what=f"this test to close {path.name} (dispose every engine it made); open file descriptors",
    )
