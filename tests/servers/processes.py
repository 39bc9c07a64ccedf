"""The server processes this session started, so that the leak check knows them, and ending them for certain."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psutil

from tests.waiting import eventually

_servers: set[int] = set()


def register(pid: int) -> None:
    """Remember a server's process: it may outlive the test that started it."""
    _servers.add(pid)


def forget(pid: int) -> None:
    """The server's process has ended."""
    _servers.discard(pid)


def is_server(pid: int) -> bool:
    """Whether `pid` is a server that the session owns."""
    return pid in _servers


def kill_tree(root: psutil.Process, timeout: float = 10.0) -> None:
    """SIGKILL a process and everything below it, and return once all of them are gone (`timeout` in seconds)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root.suspend()  # a stopped parent starts no further children while the list is read
    family = [*_descendants(root), root]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_gone(family, timeout)


def _descendants(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _wait_gone(family: Sequence[psutil.Process], timeout: float) -> None:
    eventually(
        lambda: [process for process in family if _runs(process)],
        timeout,
        until=lambda running: not running,
        what="these processes to end after SIGKILL",
    )


def _runs(process: psutil.Process) -> bool:
    # A zombie runs no more and holds no file; only its parent, or whoever inherited it, can remove the entry.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
