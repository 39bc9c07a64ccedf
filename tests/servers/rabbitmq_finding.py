"""Where the tests look for RabbitMQ; the order is that of `finding`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from tests.servers.postgres_container import docker_answers
from tests.servers.rabbitmq import RabbitServer
from tests.servers.rabbitmq_container import IMAGE, ContainerRabbit
from tests.servers.rabbitmq_external import URL_VARIABLE, ExternalRabbit
from tests.servers.rabbitmq_local import LocalRabbit
from tests.servers.rabbitmq_programs import find_programs


def find_rabbitmq(environ: Mapping[str, str] = os.environ, *, private: bool = False) -> RabbitServer:
    """A RabbitMQ that is ready for use; `private` asks for one that may be killed.

    Raises ServerUnavailable, with the command to run, when there is none and none can be installed.
    """
    if (url := environ.get(URL_VARIABLE)) and not private:
        return _started(ExternalRabbit(url))
    if docker_answers() and (container := _container()) is not None:
        return container
    return _started(LocalRabbit(find_programs()))


def _container() -> RabbitServer | None:
    from docker.errors import DockerException

    try:
        return _started(ContainerRabbit())
    except DockerException as error:
        print(f"\ntests: Docker answers but did not give {IMAGE} ({error}); looking for a binary", file=sys.__stderr__)
        return None


def _started(server: RabbitServer) -> RabbitServer:
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
