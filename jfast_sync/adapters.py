"""Which adapter the configuration names; drivers are imported here and nowhere earlier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.errors import ConfigError, JFastError, MissingDriverError
from jfast_sync.outcome import Policy
from jfast_sync.ports import Queue, SharesTransaction, TickStore
from jfast_sync.redact import error_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from jfast_sync.config import Config
    from jfast_sync.config import Queue as QueueConfig
    from jfast_sync.core import JFast
    from jfast_sync.sql.engine import Database
    from jfast_sync.telemetry import Telemetry
    from jfast_sync.worker import Worker
    from jfast_sync.worker.child import ChildLauncher

__all__ = [
    "database",
    "policy",
    "queue",
    "set_up_queue",
    "set_up_tables",
    "sized_for",
    "telemetry",
    "tick_store",
    "worker",
]

_SPARE_CONNECTIONS: Final = 4
_TICK_CONNECTIONS: Final = 8
_threads: ContextVar[int | None] = ContextVar("jfast_threads", default=None)


@contextmanager
def sized_for(threads: int | None) -> Iterator[None]:
    """Size the pools of apps built inside the block for a worker of so many threads, unless they say otherwise."""
    token = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(token)


def database(config: Config, *, engine: Engine | None = None, threads: int | None = None) -> Database | None:
    """Return the primary database, or None where the plugin is off; opens no connection."""
    if "database" not in config.plugins.enabled and engine is None:
        return None
    from jfast_sync.sql.engine import Database

    threads = threads or _threads.get()
    size = config.database.pool_size or (threads + _SPARE_CONNECTIONS if threads else None)
    return Database(
        engine if engine is not None else config.database.dsn,
        pool_size=size,
        pgbouncer=config.database.pgbouncer,
        rls=config.database.rls,
    )


def queue(config: Config, primary: Database | None) -> Queue:
    """Return the configured backend; opens no connection.

    Raises:
        ConfigError: the backend needs something that is not configured.
    """
    backend = config.queue.backend
    match backend:
        case "auto" | "postgres" | "sqlite":
            return _sql_queue(config, primary)
        case "memory":
            from jfast_sync.queues.memory import MemoryQueue

            return MemoryQueue(visibility_timeout=config.queue.visibility_timeout, keep_done=config.queue.keep_done)
        case "redis":
            return _redis_queue(config)
        case "rabbitmq":
            return _rabbit_queue(config)
        case _:
            return _own_queue(backend, config)


def _sql_queue(config: Config, primary: Database | None) -> Queue:
    if primary is None:
        raise ConfigError(
            f'[plugin.queue] backend = "{config.queue.backend}" lives in the primary database: '
            'add "database" to [plugins] enabled'
        )
    wanted = {"postgres": "postgresql", "sqlite": "sqlite"}.get(config.queue.backend, primary.dialect)
    if wanted != primary.dialect:
        raise ConfigError(
            f'[plugin.queue] backend = "{config.queue.backend}", but [plugin.database] dsn is {primary.dialect}; '
            'write backend = "auto" to follow the database'
        )
    from jfast_sync.queues.sql import SqlQueue

    return SqlQueue(
        primary,
        name=config.queue.name,
        visibility_timeout=config.queue.visibility_timeout,
        keep_done=config.queue.keep_done,
        listen=config.queue.listen,
        listen_dsn=config.database.listen_dsn,
        poll_interval=config.queue.poll_interval,
    )


def _redis_queue(config: Config) -> Queue:
    from jfast_sync.queues.redis import RedisQueue

    cache = config.cache
    return RedisQueue(
        cache.url,
        name=config.queue.name.replace("_", ":"),
        key_prefix=cache.key_prefix,
        visibility_timeout=config.queue.visibility_timeout,
        keep_done=config.queue.keep_done,
        tls=_redis_tls(config),
    )


def _redis_tls(config: Config) -> dict[str, str]:
    cache = config.cache
    files = {"ssl_ca_certs": cache.ssl_cafile, "ssl_certfile": cache.ssl_certfile, "ssl_keyfile": cache.ssl_keyfile}
    return {option: str(config.folder / name) for option, name in files.items() if name}


def _rabbit_queue(config: Config) -> Queue:
    try:
        import pika  # noqa: F401
    except ImportError:
        raise MissingDriverError(
            '[plugin.queue] backend = "rabbitmq" needs pika: pip install "jfast-sync[rabbitmq]"'
        ) from None
    from jfast_sync.queues.rabbitmq.connection import Server
    from jfast_sync.queues.rabbitmq.queue import RabbitQueue

    options = config.queue
    files = {
        name: config.folder / value
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
        if (value := getattr(options, f"rabbitmq_{name}")) is not None
    }
    return RabbitQueue(
        Server(url=options.rabbitmq_url, **files),
        name=options.name,
        queue_type=options.rabbitmq_queue_type,
        visibility_timeout=options.visibility_timeout,
    )


def _own_queue(target: str, config: Config) -> Queue:
    module, _, name = target.partition(":")
    try:
        made = getattr(import_module(module), name)(config)
    except JFastError:
        raise
    except Exception as exc:
        raise ConfigError(f'[plugin.queue] backend = "{target}" cannot be loaded: {error_text(exc)}') from exc
    if not isinstance(made, Queue):
        raise ConfigError(
            f'[plugin.queue] backend = "{target}" is not a queue: it lacks methods of jfast_sync.ports.Queue'
        )
    return made


def telemetry(config: Config, backend: Queue) -> Telemetry | None:
    """Return what traces the app's jobs, or None where the plugin is off; OpenTelemetry is not imported then.

    Raises:
        MissingDriverError: it is not installed.
    """
    if not config.has("telemetry"):
        return None
    try:
        from jfast_sync.telemetry import Telemetry
    except ImportError:
        raise MissingDriverError(
            '[plugins] enabled names "telemetry", which needs OpenTelemetry: pip install "jfast-sync[otel]"'
        ) from None
    return Telemetry(backend.backend)


def set_up_tables(config: Config, primary: Database) -> None:
    """Create or upgrade the tables; in prod refuse those that are not current, and a role above ``rls``."""
    from jfast_sync.sql import schema

    current_only = config.app.env == "prod"
    (schema.require_current if current_only else schema.upgrade)(primary, config.jobs_table)
    if primary.rls:
        from jfast_sync.sql import tenants

        tenants.check(primary, strict=current_only)


def set_up_queue(config: Config, backend: Queue) -> None:
    """Create or upgrade what the queue needs on its server; in prod a database's tables are only looked at."""
    if not (config.app.env == "prod" and isinstance(backend, SharesTransaction)):
        backend.setup()


def worker(app: JFast, **options: Any) -> Worker:
    """Build a worker over an app; what the options leave open comes from the configuration."""
    from jfast_sync.worker import Worker, WorkerOptions

    config = app.config.queue
    defaults = {
        "job_timeout": config.job_timeout,
        "visibility_timeout": config.visibility_timeout,
        "claim": config.claim,
        "drain_horizon": config.backoff_cap,
    }
    return Worker(
        app.queue.backend,
        app.tasks,
        app.database,
        app,
        WorkerOptions(**{**defaults, **options}),
        observers=app.observers,
        policy=policy(config),
        child=_child(app),
        setup=app.setup,
        coming=app.relaying.coming,
    )


def tick_store(config: Config, primary: Database | None) -> TickStore:
    """Return where ticks are claimed; opens no connection.

    Raises:
        ConfigError: it needs something that is not configured.
    """
    if config.tick_store == "database":
        from jfast_sync.ticks.sql import SqlTickStore

        if primary is None:
            raise ConfigError(
                '[plugin.queue] scheduler_store = "database" needs one: add "database" to [plugins] enabled'
            )
        return SqlTickStore(primary)
    if config.tick_store == "cache":
        from jfast_sync.queues.redis.connect import client, pool
        from jfast_sync.ticks.redis import RedisTickStore

        connections = pool(config.cache.url, max_connections=_TICK_CONNECTIONS, tls=_redis_tls(config))
        return RedisTickStore(client(connections), key_prefix=config.cache.key_prefix)
    from jfast_sync.ticks.memory import MemoryTickStore

    return MemoryTickStore()


def policy(config: QueueConfig) -> Policy:
    """Return how the configuration decides between retry and dead letter; a task's options go over it."""
    return Policy(
        backoff_base=config.backoff_base,
        backoff_cap=config.backoff_cap,
        backoff_jitter=config.backoff_jitter,
        snooze_max_age=timedelta(seconds=config.snooze_max_age),
    )


def _child(app: JFast) -> ChildLauncher | None:
    """Return what runs a job alone; None where another process could not build this app, or would see another queue."""
    if app.source is None or app.queue.backend.backend == "memory":
        return None
    from jfast_sync.worker.child import ChildProcess

    return ChildProcess(app.source.to_json())
