"""A process under test - mostly one `jfast-sync worker` - with the signals a test sends it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.servers.processes import kill_tree
from tests.waiting import eventually

PROGRAMS = Path(sys.executable).parent
_TROUBLE = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|Exception", re.IGNORECASE)


class WorkerProcess:
    """A running worker, or a server with one inside. It leads a process group of its own, for a Ctrl-C to all of it.

    Args:
        folder: the project's.
        name: its log's name.
        command: the program and its arguments.
        environment: on top of this process's, from which JFAST_* is removed.
    """

    def __init__(
        self, folder: Path, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("JFAST_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**inherited, "JFAST_LOG_JSON_LOGS": "false", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.process = psutil.Process(self.pid)
        self._family: list[psutil.Process] = []

    # --- signals

    def send(self, number: signal.Signals) -> float:
        """Send a signal and return when, on the monotonic clock."""
        self._process.send_signal(number)
        return time.monotonic()

    def terminate(self) -> float:
        """SIGTERM: the drain begins."""
        return self.send(signal.SIGTERM)

    def press_ctrl_c(self) -> float:
        """SIGINT to the whole process group, as a terminal sends it."""
        os.killpg(self.pid, signal.SIGINT)
        return time.monotonic()

    def kill(self) -> None:
        """SIGKILL to the worker and every process below it; returns when they are gone."""
        kill_tree(self.process)
        self._process.wait(10)

    def kill_only(self) -> None:
        """SIGKILL to the process itself; what it started is on its own."""
        self._family += self.children()
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        """SIGSTOP, and return when the process has stopped."""
        self.send(signal.SIGSTOP)
        eventually(self.process.status, 5, until=lambda status: status == psutil.STATUS_STOPPED, what="SIGSTOP")

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    # --- what can be observed

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit code; a signal's number negative."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout:g} s; it said:\n{self.log}") from None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def children(self) -> list[psutil.Process]:
        """The processes below it now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.process.children(recursive=True)
        return []

    @property
    def log(self) -> str:
        """All it has said so far, on stdout and stderr."""
        return self._log.read_text(errors="replace")

    def wait_for_log(self, pattern: str, timeout: float = 15.0) -> str:
        """Wait until it has said something that matches."""

        def said() -> str:
            found = re.search(pattern, self.log)
            return found.group() if found else ""

        return eventually(said, timeout, what=f"{self.name} to say {pattern!r}; it said:\n{self.log}")

    def trouble(self) -> list[str]:
        """Lines that report something unusual."""
        return [line for line in self.log.splitlines() if _TROUBLE.search(line)]

    def cpu_seconds(self) -> float:
        """CPU time of all its threads, from the scheduler's nanosecond counters."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def close(self) -> None:
        """Kill what is left of it and print what it said: pytest shows that for a failed test."""
        self._family += self.children()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in [*self._family, self.process]:
            kill_tree(process)
        self._process.wait(10)
        print(f"--- {self.name}, exit {self._process.returncode}\n{self.log}")
