"""How the server is reached: a plain URL, TLS, a Unix socket, or a Sentinel that says where the master is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from jfast_sync.errors import ConfigError, MissingDriverError
from jfast_sync.redact import mask_dsn

if TYPE_CHECKING:
    from redis import ConnectionPool

__all__ = ["LONGEST_BLOCK", "client", "pool"]

#: The longest a blocking command waits (seconds); a lost wake-up is made good after this long.
LONGEST_BLOCK: Final = 1.0
_REPLY: Final = LONGEST_BLOCK + 5.0
_CONNECT: Final = 5.0
_FREE_CONNECTION: Final = 5.0
_SENTINEL_PORT: Final = 26379


def pool(url: str, *, max_connections: int, tls: Mapping[str, str]) -> ConnectionPool:
    """Return a pool of connections to ``url``; opens none.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, or ``redis+sentinel://`` and ``rediss+sentinel://`` with
            ``[user:password@]host:port[,host:port...]/service[/db]``.
        max_connections: how many at most; a caller waits up to 5 seconds for a free one.
        tls: redis-py's ``ssl_*`` options.

    Raises:
        MissingDriverError: redis-py is not installed.
        ConfigError: the URL cannot be read.
    """
    try:
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as exc:
        raise MissingDriverError('Redis needs its driver: pip install "jfast-sync[redis]"') from exc
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "socket_timeout": _REPLY,
        "socket_connect_timeout": _CONNECT,
        "socket_keepalive": True,
        # A command repeated by the library may run twice; what may be repeated is repeated by us.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }
    scheme, _, rest = url.partition("://")
    try:
        if scheme.endswith("+sentinel"):
            return _sentinel_pool(scheme.removesuffix("+sentinel") == "rediss", rest, options, tls)
        if scheme == "unix":
            del options["socket_keepalive"]
        secure = dict(tls) if scheme == "rediss" else {}
        from jfast_sync.queues.redis.cluster import NodePool

        made = NodePool.from_url(url, timeout=_FREE_CONNECTION, **options, **secure)
        made.connection_kwargs["retry"] = options["retry"]  # whatever the URL's query says
        return made
    except ValueError as exc:
        raise ConfigError(f"[plugin.cache] url = {mask_dsn(url)!r} cannot be read: {exc}") from None


def client(connections: ConnectionPool) -> Any:
    """Return a client on a pool; it follows a cluster to the node that has the keys."""
    from jfast_sync.queues.redis.cluster import NodeClient

    return NodeClient(connection_pool=connections)


def _sentinel_pool(secure: bool, rest: str, options: dict[str, Any], tls: Mapping[str, str]) -> ConnectionPool:
    from redis import sentinel

    from jfast_sync.queues.redis.cluster import WaitingPool

    library: Any = sentinel  # without types

    parts = urlsplit(f"//{rest}")
    user_info, at, servers = parts.netloc.rpartition("@")
    user, _, password = user_info.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    if not service or not servers:
        raise ValueError("expected redis+sentinel://host:port,host:port/service")
    login = {"username": unquote(user) or None, "password": unquote(password) or None} if at else {}
    addresses = [_address(server) for server in servers.split(",")]
    timeouts = {name: value for name, value in options.items() if name.startswith("socket_") or name == "retry"}
    finder = library.Sentinel(addresses, sentinel_kwargs={**timeouts, **login})
    # The library's own pool refuses one caller too many; this one has it wait, as on a plain URL.
    blocking: Any = type("SentinelPool", (library.SentinelConnectionPool, WaitingPool), {})
    options |= {"timeout": _FREE_CONNECTION, "db": int(db or 0), "ssl": secure, **login, **(tls if secure else {})}
    made: ConnectionPool = blocking(service, finder, is_master=True, **options)
    return made


def _address(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    return (host.strip("[]"), int(port)) if colon else (server, _SENTINEL_PORT)
