"""Where the tests look for Redis: what is named first, then what is isolated best, then what can be installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from tests.servers.postgres_container import docker_answers
from tests.servers.redis import ExternalRedis, RedisServer
from tests.servers.redis_local import LocalRedis, find_program

URL_VARIABLE = "JFAST_TEST_REDIS_URL"


def find_redis(
    environ: Mapping[str, str] | None = None, *, private: bool = False, settings: Mapping[str, str] | None = None
) -> RedisServer:
    """A Redis that is ready for use.

    `private` asks for one that may be killed and configured (`settings`), so the URL in the environment does not count.
    Raises ServerUnavailable, with the command to run, when there is none and none can be installed.
    """
    if (url := (os.environ if environ is None else environ).get(URL_VARIABLE)) and not private:
        return _started(ExternalRedis(url))
    if docker_answers() and (container := _container(settings or {})) is not None:
        return container
    return _started(LocalRedis(find_program(), **(settings or {})))


def _container(settings: Mapping[str, str]) -> RedisServer | None:
    from docker.errors import DockerException

    from tests.servers.redis_container import IMAGE, ContainerRedis

    try:
        return _started(ContainerRedis(**settings))
    except DockerException as error:
        # An engine without a way to the image, or without room: the next place may do.
        print(f"\ntests: Docker answers but did not give {IMAGE} ({error}); looking for a binary", file=sys.__stderr__)
        return None


def _started(server: RedisServer) -> RedisServer:
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
