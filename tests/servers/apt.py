"""Installing a missing server with apt-get, where this is possible: as root on Debian or Ubuntu."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

_LOCK = Path(tempfile.gettempdir()) / f"jfast-sync-apt-{os.getuid()}.lock"
# What Debian's packages ask before they start a service: "no" keeps them from starting one of the system's.
_POLICY = Path("/usr/sbin/policy-rc.d")


def find_or_install(look: Callable[[], Found | None], title: str, package: str) -> Found | None:
    """What `look` finds, if need be after installing Debian's `package`; None where it is not there and cannot be had.

    Parallel test processes miss the same server at the same time: one installs, and the others look when it is done,
    not while half of it is unpacked.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = look()
        return look() if found is None and _install(title, package) else found


def _install(title: str, package: str) -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"\ntests: {title} is missing; installing it with apt-get (running as root)", file=sys.__stderr__)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
    )
    with _no_service():
        return all(
            subprocess.run(step, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0
            for step in steps
        )


@contextlib.contextmanager
def _no_service() -> Iterator[None]:
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
