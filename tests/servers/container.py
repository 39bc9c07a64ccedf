"""A server in a container, where a Docker engine answers."""

from __future__ import annotations

import os
import socket
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from tests.servers.network import HOST
from tests.servers.server import Server

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer


def docker_answers(timeout: float = 2.0) -> bool:
    """Whether a Docker engine on this machine answers a ping within `timeout` seconds."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://") or not _listens(address.removeprefix("unix://"), timeout):
        return False  # an engine elsewhere cannot give a server on the loopback interface
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


def _listens(path: str, timeout: float) -> bool:
    # Asked before the docker package is: where nothing listens it leaves a socket open, and warnings are errors here.
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout)
        return probe.connect_ex(path) == 0


class ContainerServer(Server):
    """One container on a fixed loopback port, so that it keeps its address when it is killed and started again."""

    image: ClassVar[str]
    stop_signal: ClassVar[str] = "SIGTERM"
    _container: DockerContainer | None = None

    @abstractmethod
    def _create(self) -> DockerContainer:
        """Describe the container; it is started by the caller."""

    def start(self) -> None:
        """Create the container the first time, start it again later."""
        if self._container is None:
            self._container = self._create()
            self._container.start()
        elif not self.running:
            self._wrapped.start()
        self.wait_until_ready()

    def stop(self) -> None:
        self._signal(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL the container's first process, and with it all others."""
        self._signal("SIGKILL")

    def close(self) -> None:
        """Remove the container and its volume."""
        if self._container is not None:
            self._container.stop(force=True, delete_volume=True)
            self._container = None

    @property
    def running(self) -> bool:
        """Whether the engine calls it running."""
        if self._container is None:
            return False
        self._wrapped.reload()
        return bool(self._wrapped.status == "running")

    def last_words(self) -> str:
        """The end of the container's log."""
        return "no container" if self._container is None else self._wrapped.logs(tail=20).decode(errors="replace")

    @property
    def _wrapped(self) -> Any:
        assert self._container is not None
        return self._container.get_wrapped_container()

    def _signal(self, name: str) -> None:
        if self.running:
            self._wrapped.kill(name)
            self._wrapped.wait(timeout=60)


def published(container: DockerContainer, inside: int, port: int) -> DockerContainer:
    """Have a port of the container's on this machine alone: with_bind_ports() binds every interface."""
    bound: dict[str, Any] = {f"{inside}/tcp": (HOST, port)}
    container.ports = bound
    return container
