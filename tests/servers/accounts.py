"""Running a server as somebody else: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOM_IN_MEMORY = 4 << 30  # bytes


@dataclass(frozen=True)
class Account:
    """The system user a server runs as; `None` means the user of this process."""

    uid: int | None = None
    gid: int | None = None

    @property
    def popen(self) -> dict[str, Any]:
        """The arguments that make subprocess run a program as this user."""
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def may_execute(self, path: Path) -> bool:
        """Whether this user can reach and execute `path`, be it a program or a folder."""
        if self.uid is None:
            return os.access(path, os.X_OK)
        return subprocess.run(["test", "-x", str(path)], cwd="/", check=False, **self.popen).returncode == 0

    def own(self, path: Path) -> None:
        """Give the folder `path` to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def private_folder(self, prefix: str) -> Path:
        """A new temporary folder that this user owns and can reach, in memory where there is room.

        Creating a database makes some 300 files: 20 ms in memory, 200 ms on a disk.
        """
        for parent in _temporary_folders():
            if self.may_execute(parent) and os.access(parent, os.W_OK):
                folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
                self.own(folder)
                return folder
        raise PermissionError(f"no temporary folder that user id {self.uid} can reach")


def _temporary_folders() -> Iterator[Path]:
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free >= _ROOM_IN_MEMORY:
        yield memory
    yield Path(tempfile.gettempdir())
    # Root's own TMPDIR may be closed to others.
    yield from (Path("/tmp"), Path("/var/tmp"))


def unprivileged() -> Account:
    """This process's own user, or, when that is root, `postgres` or `nobody`."""
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise PermissionError("running as root, and there is neither a user postgres nor nobody to drop to")
