"""Redis in a container, where a Docker engine answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.servers.network import HOST, free_port
from tests.servers.redis import RedisServer
from tests.servers.redis_local import SETTINGS

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = "redis:8-alpine"


class ContainerRedis(RedisServer):
    """One container on a fixed loopback port, so that it keeps its address when it is killed and started again."""

    def __init__(self, **settings: str) -> None:
        self._bound = free_port()
        self._container: DockerContainer | None = None
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        super().__init__(f"redis://{HOST}:{self._bound}/0")

    def start(self) -> None:
        if self._container is None:
            self._container = self._create()
            self._container.start()
        elif not self.running:
            self._wrapped.start()
        self.wait_until_ready()

    def stop(self) -> None:
        self._signal("SIGTERM")

    def kill(self) -> None:
        self._signal("SIGKILL")

    def close(self) -> None:
        if self._container is not None:
            self._container.stop(force=True, delete_volume=True)
            self._container = None

    @property
    def running(self) -> bool:
        if self._container is None:
            return False
        self._wrapped.reload()
        return bool(self._wrapped.status == "running")

    def last_words(self) -> str:
        return "no container" if self._container is None else self._wrapped.logs(tail=20).decode(errors="replace")

    @property
    def _wrapped(self) -> Any:
        assert self._container is not None
        return self._container.get_wrapped_container()

    def _signal(self, name: str) -> None:
        if self.running:
            self._wrapped.kill(name)
            self._wrapped.wait(timeout=60)

    def _create(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer

        words = [part for name, value in self.settings.items() for part in (f"--{name}", value or '""')]
        container = DockerContainer(IMAGE).with_command(["redis-server", *words])
        bound: dict[str, Any] = {"6379/tcp": (HOST, self._bound)}
        container.ports = bound
        return container
