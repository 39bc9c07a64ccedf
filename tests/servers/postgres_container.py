"""PostgreSQL in a container, where a Docker engine answers."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from tests.servers.network import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_local import SETTINGS

IMAGE = "postgres:17-alpine"


def docker_answers(timeout: float = 2.0) -> bool:
    """Whether a Docker engine answers a ping within `timeout` seconds."""
    if not _listens(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), timeout):
        return False
    import docker

    try:
        client = docker.from_env(timeout=timeout)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


def _listens(address: str, timeout: float) -> bool:
    # Asked before the docker package is: where nothing listens it leaves a socket open, and warnings are errors here.
    path = address.removeprefix("unix://")
    if path == address:
        return True  # tcp, ssh: the package finds out
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout)
        return probe.connect_ex(path) == 0


class ContainerPostgres(PostgresServer):
    """One container on a fixed loopback port, so that it keeps its address when it is killed and started again."""

    def __init__(self) -> None:
        self._port = free_port()
        secret = secrets.token_urlsafe(12)
        super().__init__(f"postgresql://postgres:{secret}@{HOST}:{self._port}/postgres", secrets.token_urlsafe(12))
        self._secret = secret
        self._container: Any = None

    def start(self) -> None:
        """Create the container the first time, start it again later."""
        if self._container is None:
            self._container = self._create().start().get_wrapped_container()
            self.wait_until_ready()
            self.prepare_role()
        else:
            self._container.start()
            self.wait_until_ready()

    def stop(self) -> None:
        """Stop with SIGINT, PostgreSQL's fast shutdown."""
        self._container.kill("SIGINT")
        self._container.wait(timeout=60)

    def kill(self) -> None:
        """SIGKILL the container's first process, and with it all others."""
        self._container.kill()
        self._container.wait(timeout=60)

    def close(self) -> None:
        """Remove the container and its volume."""
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None

    @property
    def running(self) -> bool:
        """Whether the engine calls it running."""
        if self._container is None:
            return False
        self._container.reload()
        return bool(self._container.status == "running")

    def last_words(self) -> str:
        """The end of the container's log."""
        return "no container" if self._container is None else self._container.logs(tail=10).decode(errors="replace")

    def _create(self) -> Any:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(IMAGE).with_env("POSTGRES_PASSWORD", self._secret)
        container.with_kwargs(ports={"5432/tcp": (HOST, self._port)})
        container.with_command([part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")])
        return container
