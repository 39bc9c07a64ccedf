"""PostgreSQL in a container."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from tests.servers.container import ContainerServer, published
from tests.servers.network import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_local import SETTINGS

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer


class ContainerPostgres(ContainerServer, PostgresServer):
    """Stopped with SIGINT, PostgreSQL's fast shutdown."""

    image = "postgres:17-alpine"
    stop_signal = "SIGINT"

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(12)
        self._bound = free_port()
        super().__init__(
            f"postgresql://postgres:{self._secret}@{HOST}:{self._bound}/postgres", secrets.token_urlsafe(12)
        )

    def start(self) -> None:
        new = self._container is None
        super().start()
        if new:
            self.prepare_role()

    def _create(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer

        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        container = DockerContainer(self.image).with_env("POSTGRES_PASSWORD", self._secret).with_command(options)
        return published(container, 5432, self._bound)
