"""Ending PostgreSQL clusters without a trace: those of this session, and those whose session was killed.

A session holds a file lock in the folder of each of its clusters. The kernel releases it when the session ends,
however it ends; whoever can take it knows that the cluster has no owner any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
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


def end_cluster(postmaster: psutil.Process, data: Path) -> None:
    """SIGKILL all processes and remove what a crash leaves: the lock file and the shared memory."""
    lock_file = data / "postmaster.pid"
    segment = _shared_memory_id(lock_file)
    kill_tree(postmaster)
    # Everything is known to be gone. A lock file whose process id somebody else got meanwhile would stop a restart.
    lock_file.unlink(missing_ok=True)
    if segment is not None:
        subprocess.run(["ipcrm", "-m", segment], check=False, stderr=subprocess.DEVNULL)


def _shared_memory_id(lock_file: Path) -> str | None:
    # Line 7 of postmaster.pid: key and id of the System V segment that guards the data folder.
    try:
        lines = lock_file.read_text().splitlines()
    except FileNotFoundError:
        return None
    fields = lines[6].split() if len(lines) > 6 else []
    return fields[1] if len(fields) == 2 else None


def _end(folder: Path) -> None:
    data = folder / "data"
    with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
        process = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
        # The number may be somebody else's by now; a postmaster works in its data folder.
        if Path(process.cwd()) == data:
            end_cluster(process, data)
    shutil.rmtree(folder, ignore_errors=True)
