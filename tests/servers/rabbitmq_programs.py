"""RabbitMQ's programs on this machine, and how to get them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.errors import ServerUnavailable
from tests.servers.rabbitmq_external import URL_VARIABLE

ADVICE = f"""RabbitMQ is needed by the tests and was not found. One of these helps:
  a Docker engine that answers
  sudo apt-get install rabbitmq-server        (Debian, Ubuntu)
  brew install rabbitmq                       (macOS)
  export {URL_VARIABLE}=amqp://user:password@host:5672/vhost"""
_POLICY = Path("/usr/sbin/policy-rc.d")


def find_programs() -> Path:
    """The folder of `rabbitmq-server` and `rabbitmqctl`: on this machine, or installed now."""
    found = _debian() or _on_path()
    if found is None and _install_with_apt():
        found = _debian()
    if found is None:
        raise ServerUnavailable(ADVICE)
    return found


def _debian() -> Path | None:
    # Debian's wrappers on PATH switch to another user and read the system's configuration; these do not.
    folders = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    return folders[-1] if folders else None


def _on_path() -> Path | None:
    program = shutil.which("rabbitmq-server")
    return Path(program).resolve().parent if program else None


def _install_with_apt() -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print("\ntests: RabbitMQ is missing; installing it with apt-get (running as root)", file=sys.__stderr__)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "rabbitmq-server"],
    )
    ours = not _POLICY.exists()
    if ours:  # or the package would start a broker of the system's
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        return all(
            subprocess.run(step, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0
            for step in steps
        )
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
