"""Where the tests look for a server: what is named first, then what is isolated best, then what can be installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from tests.servers.container import ContainerServer, docker_answers
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_container import ContainerPostgres
from tests.servers.postgres_external import URL_VARIABLE as POSTGRES_URL
from tests.servers.postgres_external import ExternalPostgres
from tests.servers.postgres_local import LocalPostgres
from tests.servers.postgres_programs import find_programs as find_postgres_programs
from tests.servers.rabbitmq import RabbitServer
from tests.servers.rabbitmq_container import ContainerRabbit
from tests.servers.rabbitmq_external import URL_VARIABLE as RABBITMQ_URL
from tests.servers.rabbitmq_external import ExternalRabbit
from tests.servers.rabbitmq_local import LocalRabbit
from tests.servers.rabbitmq_programs import find_programs as find_rabbitmq_programs
from tests.servers.redis import URL_VARIABLE as REDIS_URL
from tests.servers.redis import ExternalRedis, RedisServer
from tests.servers.redis_container import ContainerRedis
from tests.servers.redis_local import LocalRedis, find_program
from tests.servers.server import Server

Kind = TypeVar("Kind", bound=Server)


def find_postgres(environ: Mapping[str, str] = os.environ, *, private: bool = False) -> PostgresServer:
    """A PostgreSQL that is ready for use.

    `private` asks for one that may be killed, so the URL in the environment does not count.
    Raises ServerUnavailable, with the command to run, when there is none and none can be installed.
    """
    if (url := environ.get(POSTGRES_URL)) and not private:
        return started(ExternalPostgres(url))
    return _in_container(ContainerPostgres) or started(LocalPostgres(find_postgres_programs()))


def find_redis(
    environ: Mapping[str, str] = os.environ, *, private: bool = False, settings: Mapping[str, str] | None = None
) -> RedisServer:
    """A Redis that is ready for use; as `find_postgres`, and `private` also means that it may be configured."""
    if (url := environ.get(REDIS_URL)) and not private:
        return started(ExternalRedis(url))
    given = dict(settings or {})
    return _in_container(partial(ContainerRedis, **given)) or started(LocalRedis(find_program(), **given))


def find_rabbitmq(environ: Mapping[str, str] = os.environ, *, private: bool = False) -> RabbitServer:
    """A RabbitMQ that is ready for use; as `find_postgres`."""
    if (url := environ.get(RABBITMQ_URL)) and not private:
        return started(ExternalRabbit(url))
    return _in_container(ContainerRabbit) or started(LocalRabbit(find_rabbitmq_programs()))


def _in_container(make: Callable[[], Kind]) -> Kind | None:
    if not docker_answers():
        return None
    from docker.errors import DockerException

    server = make()
    try:
        return started(server)
    except DockerException as error:
        # An engine without a way to the image, or without room: the next place may do.
        image = server.image if isinstance(server, ContainerServer) else server.title
        print(f"\ntests: Docker answers but did not give {image} ({error}); looking for a binary", file=sys.__stderr__)
        return None


def started(server: Kind) -> Kind:
    """Start a server; one that does not start is cleaned away."""
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
