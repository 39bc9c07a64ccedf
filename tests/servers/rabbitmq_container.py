"""RabbitMQ in a container."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.container import ContainerServer, published
from tests.servers.errors import ServerUnavailable
from tests.servers.network import HOST, free_port
from tests.servers.rabbitmq import CONFIRM_TIMEOUT_MS, RabbitServer

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

USER, PASSWORD = "jfast", "jfast-test"


class ContainerRabbit(ContainerServer, RabbitServer):
    """Without the management plugin, and with the shortened confirm timeout."""

    image = "rabbitmq:4.1-alpine"

    def __init__(self) -> None:
        self._bound = free_port()
        super().__init__(f"amqp://{USER}:{PASSWORD}@{HOST}:{self._bound}/%2F")
        self._folder = tempfile.TemporaryDirectory(prefix="jfast-rabbitmq-")
        self._advanced = Path(self._folder.name) / "advanced.config"
        setting = f"{{dead_letter_worker_publisher_confirm_timeout, {CONFIRM_TIMEOUT_MS}}}"
        self._advanced.write_text(f"[{{rabbit, [{setting}]}}].\n")
        self._advanced.chmod(0o644)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def control(self, *arguments: str) -> str:
        code, output = self._wrapped.exec_run(["rabbitmqctl", "-q", *arguments])
        if code:
            raise ServerUnavailable(f"rabbitmqctl {' '.join(arguments)}: {output.decode(errors='replace')}")
        return str(output.decode(errors="replace"))

    def _create(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer

        container = (
            DockerContainer(self.image, hostname="jfast-rabbitmq")
            .with_env("RABBITMQ_DEFAULT_USER", USER)
            .with_env("RABBITMQ_DEFAULT_PASS", PASSWORD)
            .with_volume_mapping(str(self._advanced), "/etc/rabbitmq/advanced.config", "ro")
        )
        return published(container, 5672, self._bound)
