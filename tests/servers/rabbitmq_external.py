"""The RabbitMQ somebody else runs, named by JFAST_TEST_RABBITMQ_URL."""

from __future__ import annotations

from tests.servers.errors import ServerUnavailable
from tests.servers.rabbitmq import RabbitServer

URL_VARIABLE = "JFAST_TEST_RABBITMQ_URL"


class ExternalRabbit(RabbitServer):
    """A broker that is only used: the tests make queues in its virtual host, and never stop it."""

    def start(self) -> None:
        if not self.accepts_connections():
            raise ServerUnavailable(f"{URL_VARIABLE} is set, but that RabbitMQ cannot be used; unset {URL_VARIABLE}")

    def stop(self) -> None:
        raise ServerUnavailable(f"the RabbitMQ of {URL_VARIABLE} is not stopped by tests; use killable_rabbitmq")

    def kill(self) -> None:
        self.stop()

    def close(self) -> None:
        """Nothing of it is ours."""

    def control(self, *arguments: str) -> str:
        raise ServerUnavailable(f"the RabbitMQ of {URL_VARIABLE} is not administered by tests; use killable_rabbitmq")

    @property
    def running(self) -> bool:
        return self.accepts_connections()
