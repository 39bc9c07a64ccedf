"""Redis in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.servers.container import ContainerServer, published
from tests.servers.network import HOST, free_port
from tests.servers.redis import RedisServer
from tests.servers.redis_local import SETTINGS

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer


class ContainerRedis(ContainerServer, RedisServer):
    """Its settings are given on the command line."""

    image = "redis:8-alpine"

    def __init__(self, **settings: str) -> None:
        self._bound = free_port()
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        super().__init__(f"redis://{HOST}:{self._bound}/0")

    def _create(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer

        words = [part for name, value in self.settings.items() for part in (f"--{name}", value or '""')]
        return published(DockerContainer(self.image).with_command(["redis-server", *words]), 6379, self._bound)
