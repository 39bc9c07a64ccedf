"""Private servers for the tests: started on free loopback ports, killable and restartable, gone when the session ends.

A server is looked for in this order: an explicit URL from the environment, Docker where an engine answers, a binary
on the machine, a binary from a PyPI wheel, and as root on Debian the system's package. One that cannot be had fails
the run.
"""

from __future__ import annotations

from tests.servers.errors import ServerUnavailable
from tests.servers.finding import find_postgres, find_rabbitmq, find_redis
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer

__all__ = [
    "PostgresServer",
    "Proxy",
    "RabbitServer",
    "RedisServer",
    "ServerUnavailable",
    "find_postgres",
    "find_rabbitmq",
    "find_redis",
]
