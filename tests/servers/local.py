"""A server from programs on this machine, in a temporary folder of its own.

A session holds a file lock in each of its folders. The kernel releases it when the session ends, however it ends;
whoever can take it knows that the folder has no owner any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import psutil

from tests.servers.processes import forget, kill_tree, register
from tests.servers.server import Server

_LOCK = "owner"


def claim(folder: Path) -> IO[bytes]:
    """Mark `folder` as in use for as long as the returned file is open in this process."""
    # Under another name until it is locked: a sweep that met it unlocked would take the folder for abandoned.
    unlocked = folder / f"{_LOCK}.new"
    lock = unlocked.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unlocked.rename(folder / _LOCK)
    return lock


def sweep(parent: Path, prefix: str, end: Callable[[Path], None]) -> None:
    """Have `end` stop what still runs in each folder under `parent` that nobody owns, and remove the folder."""
    for folder in parent.glob(f"{prefix}*"):
        # Missing: just made, or just removed. Refused: another user's.
        with contextlib.suppress(FileNotFoundError, PermissionError), (folder / _LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            # The process's number may be somebody else's by now.
            with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
                end(folder)
            shutil.rmtree(folder, ignore_errors=True)


class LocalServer(Server):
    """A process in `folder`, which is removed with it."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def _move_into(self, folder: Path, prefix: str, end: Callable[[Path], None]) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        sweep(folder.parent, prefix, end)
        self._owner = claim(folder)

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any) -> None:
        """Start the process and return when it accepts connections."""
        with self._log.open("ab") as log:
            # A session of its own: a Ctrl-C in the terminal reaches the tests, and they end the server in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, env=environment,
                start_new_session=True, **options,
            )  # fmt: skip
        register(self._process.pid)
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            self._process.wait(timeout=60)
            self._ended()

    def kill(self) -> None:
        if self._process is not None:
            if self.running:  # not where it has ended by itself, as one that cannot start does
                self._end_all(psutil.Process(self._process.pid))
            self._process.wait(timeout=10)
            self._ended()

    def close(self) -> None:
        """Kill it - nobody needs the data - and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._owner.close()

    @property
    def running(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of its first process."""
        assert self._process is not None
        return self._process.pid

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip() if self._log.exists() else "no log"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _end_all(self, first: psutil.Process) -> None:
        kill_tree(first)

    def _ended(self) -> None:
        if self._process is not None:
            forget(self._process.pid)
            self._process = None
