"""RabbitMQ's programs on this machine, and how to get them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.servers import apt
from tests.servers.errors import ServerUnavailable
from tests.servers.rabbitmq_external import URL_VARIABLE

ADVICE = f"""RabbitMQ is needed by the tests and was not found. One of these helps:
  a Docker engine that answers
  sudo apt-get install rabbitmq-server        (Debian, Ubuntu)
  brew install rabbitmq                       (macOS)
  export {URL_VARIABLE}=amqp://user:password@host:5672/vhost"""


def find_programs() -> Path:
    """The folder of `rabbitmq-server` and `rabbitmqctl`: on this machine, or installed now."""
    found = apt.find_or_install(lambda: _debian() or _on_path(), "RabbitMQ", "rabbitmq-server")
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
