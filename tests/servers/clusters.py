"""Ending PostgreSQL clusters without a trace: those of this session, and those whose session was killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from tests.servers.processes import kill_tree


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


def end_abandoned(folder: Path) -> None:
    """End what still runs of a cluster that nobody owns any more."""
    data = folder / "data"
    process = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
    if Path(process.cwd()) == data:  # a postmaster works in its data folder
        end_cluster(process, data)
