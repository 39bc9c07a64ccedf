"""Where the tests look for a server: what is named first, then what is isolated best, then what can be installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TypeVar

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_container import IMAGE, ContainerPostgres, docker_answers
from tests.servers.postgres_external import URL_VARIABLE, ExternalPostgres
from tests.servers.postgres_local import LocalPostgres
from tests.servers.postgres_programs import find_programs

Server = TypeVar("Server", bound=PostgresServer)


def find_postgres(environ: Mapping[str, str] = os.environ, *, private: bool = False) -> PostgresServer:
    """A PostgreSQL that is ready for use.

    `private` asks for one that may be killed, so the URL in the environment does not count.
    Raises ServerUnavailable, with the command to run, when there is none and none can be installed.
    """
    if (url := environ.get(URL_VARIABLE)) and not private:
        return _started(ExternalPostgres(url))
    if docker_answers() and (container := _container()) is not None:
        return container
    return _started(LocalPostgres(find_programs()))


def _container() -> ContainerPostgres | None:
    from docker.errors import DockerException

    try:
        return _started(ContainerPostgres())
    except DockerException as error:
        # An engine without a way to the image, or without room: the next place may do.
        print(f"\ntests: Docker answers but did not give {IMAGE} ({error}); looking for a binary", file=sys.__stderr__)
        return None


def _started(server: Server) -> Server:
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
