"""The asynchronous sibling in a virtual environment of its own: made once, and kept for later runs of the tests."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["sibling_python"]

REQUIREMENT: Final = "jfastframework[all]==0.1.0a12"
_PATIENCE: Final = 900  # seconds; it is half a gigabyte, and most of it is downloaded


def sibling_python() -> Path:
    """Return the Python of a virtual environment with the sibling, which is made where there is none yet."""
    name = f"{REQUIREMENT.replace('[', '-').replace(']', '')}-py{sys.version_info.major}{sys.version_info.minor}"
    home = Path(tempfile.gettempdir()) / f"jfast-sync-tests-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    assert home.stat().st_uid == os.getuid(), f"{home} is somebody else's"
    folder = home / name
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several runs may want it at once
        if not (folder / "complete").exists():
            # Slower than any test may be on a slow line: pytest's watch over this one is taken off.
            faulthandler.cancel_dump_traceback_later()
            _run(sys.executable, "-m", "venv", "--clear", str(folder))
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check"]
            # Compiled when imported: most of what the extras bring never is.
            _run(*pip, "--no-compile", "--only-binary", ":all:", REQUIREMENT)
            (folder / "complete").touch()
    return folder / "bin/python"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}"
