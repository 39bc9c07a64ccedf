"""Clusters whose test session was killed: the next session ends them, so that none piles up in memory.

A session holds a file lock in the folder of each of its clusters. The kernel releases it when the session ends,
however it ends; whoever can take it knows that the cluster has no owner any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from pathlib import Path
from typing import IO

import psutil

from tests.servers.processes import kill_tree

_LOCK = "owner"


def claim(folder: Path) -> IO[bytes]:
    """Mark `folder` as in use for as long as the returned file is open in this process."""
    lock = (folder / _LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def sweep(parent: Path, prefix: str) -> None:
    """End and remove the clusters under `parent` that nobody owns."""
    for folder in parent.glob(f"{prefix}*"):
        # Missing: just made, or just removed. Refused: another user's.
        with contextlib.suppress(FileNotFoundError, PermissionError), (folder / _LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _end(folder)


def _end(folder: Path) -> None:
    pid_file = folder / "data" / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
        process = psutil.Process(int(pid_file.read_text().split()[0]))
        # The number may be somebody else's by now; a postmaster works in its data folder.
        if Path(process.cwd()) == folder / "data":
            kill_tree(process)
    shutil.rmtree(folder, ignore_errors=True)
