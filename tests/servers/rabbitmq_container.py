"""RabbitMQ in a container, where a Docker engine answers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers.errors import ServerUnavailable
from tests.servers.network import HOST, free_port
from tests.servers.rabbitmq import CONFIRM_TIMEOUT_MS, RabbitServer

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = "rabbitmq:4.1-alpine"
USER, PASSWORD = "jfast", "jfast-test"


class ContainerRabbit(RabbitServer):
    """One container on a fixed loopback port, so that it keeps its address when it is killed and started again."""

    def __init__(self) -> None:
        self._bound = free_port()
        super().__init__(f"amqp://{USER}:{PASSWORD}@{HOST}:{self._bound}/%2F")
        self._container: DockerContainer | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="jfast-rabbitmq-")
        advanced = Path(self._folder.name) / "advanced.config"
        setting = f"{{dead_letter_worker_publisher_confirm_timeout, {CONFIRM_TIMEOUT_MS}}}"
        advanced.write_text(f"[{{rabbit, [{setting}]}}].\n")
        advanced.chmod(0o644)
        self._advanced = advanced

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
        self._folder.cleanup()

    @property
    def running(self) -> bool:
        if self._container is None:
            return False
        self._wrapped.reload()
        return bool(self._wrapped.status == "running")

    def control(self, *arguments: str) -> str:
        code, output = self._wrapped.exec_run(["rabbitmqctl", "-q", *arguments])
        if code:
            raise ServerUnavailable(f"rabbitmqctl {' '.join(arguments)}: {output.decode(errors='replace')}")
        return str(output.decode(errors="replace"))

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

        container = (
            DockerContainer(IMAGE, hostname="jfast-rabbitmq")
            .with_env("RABBITMQ_DEFAULT_USER", USER)
            .with_env("RABBITMQ_DEFAULT_PASS", PASSWORD)
            .with_volume_mapping(str(self._advanced), "/etc/rabbitmq/advanced.config", "ro")
        )
        bound: dict[str, Any] = {"5672/tcp": (HOST, self._bound)}
        container.ports = bound
        return container
