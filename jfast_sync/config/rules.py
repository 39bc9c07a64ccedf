"""Rules that join several keys: what needs what, what belongs together, what ``prod`` refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from .load import Config

__all__ = ["broken_rules"]

Broken = tuple[str, str, str]
"""Table, key, and what is wrong with its value."""


def broken_rules(config: Config) -> Iterator[Broken]:
    """Every rule the configuration breaks."""
    yield from _needs(config)
    if config.has("queue"):
        yield from _queue(config)
    if config.has("outbox") and config.has("database") and config.has("queue"):
        yield from _inbox(config)
    if config.has("events"):
        yield from _events(config)
    yield from _tls(config)
    yield from _database(config)
    if config.app.env == "prod":
        yield from _prod(config)


def _needs(config: Config) -> Iterator[Broken]:
    if config.has("outbox") and not config.has("database"):
        yield "plugins", "enabled", 'outbox needs database: add "database" or leave "outbox" out'
    if config.queue.scheduler and not config.has("queue"):
        yield "queue", "scheduler", 'needs the queue plugin: add "queue" to [plugins] enabled'
    if config.queue.scheduler_store == "database" and not config.has("database"):
        yield "queue", "scheduler_store", 'needs the database plugin: add "database" to [plugins] enabled'
    if config.queue.scheduler_store == "cache" and not config.has("cache"):
        yield "queue", "scheduler_store", 'uses the cache plugin\'s server: add "cache" to [plugins] enabled'
    if config.queue.scheduler and config.forgets_ticks_of_others and config.queue.scheduler_store == "auto":
        why = (
            'has nothing that processes share, so that each would run every schedule: add "database" or "cache" to '
            '[plugins] enabled, or write "memory" if there is one process only'
        )
        yield "queue", "scheduler_store", why


def _queue(config: Config) -> Iterator[Broken]:
    backend, queue = config.queue.backend, config.queue
    if backend in ("auto", "postgres", "sqlite") and not config.has("database"):
        yield "queue", "backend", 'keeps jobs in the primary database: add "database" to [plugins] enabled'
    elif backend in ("postgres", "sqlite") and _names_dsn(config) and backend != config.backend_of_database:
        yield (
            "queue",
            "backend",
            f'[plugin.database] dsn is {config.backend_of_database}; write "auto" or change the dsn',
        )
    if backend == "redis" and not config.has("cache"):
        yield (
            "queue",
            "backend",
            'uses the cache plugin\'s server: add "cache" to [plugins] enabled and set [plugin.cache] url',
        )
    if queue.claim == "registered" and config.backend not in ("postgres", "sqlite"):
        yield "queue", "claim", f'only SQL queues can choose what they claim, and backend is "{backend}"; write "all"'


def _inbox(config: Config) -> Iterator[Broken]:
    queue = config.queue
    delay, retries = queue.backoff_base, 0.0
    for left in range(queue.max_attempts - 1, 0, -1):
        if delay >= queue.backoff_cap or not delay:
            retries += min(delay, queue.backoff_cap) * left
            break
        retries += delay
        delay *= 2
    needed = (queue.visibility_timeout + retries) / 86_400
    if config.outbox.inbox_retention_days < needed:
        why = (
            f"must outlast a lease and all retries of a job, {needed:.2g} days by visibility_timeout, max_attempts, "
            "backoff_base and backoff_cap of [plugin.queue]: a redelivery after that would run twice"
        )
        yield "outbox", "inbox_retention_days", why


def _events(config: Config) -> Iterator[Broken]:
    events = config.events
    signs_in = events.security_protocol.startswith("SASL_")
    if signs_in and not (events.sasl_mechanism and events.sasl_username and events.sasl_password):
        yield "events", "security_protocol", "needs sasl_mechanism, sasl_username and sasl_password"
    if not signs_in:
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            if getattr(events, name):
                yield "events", name, "has no effect unless security_protocol is SASL_SSL or SASL_PLAINTEXT"


def _tls(config: Config) -> Iterator[Broken]:
    users = (
        ("events", "", config.events.security_protocol.endswith("SSL"), "security_protocol is SSL or SASL_SSL"),
        ("cache", "", config.cache.url.startswith(("rediss://", "rediss+")), "url begins with rediss://"),
        ("queue", "rabbitmq_", config.queue.rabbitmq_url.startswith("amqps://"), "rabbitmq_url begins with amqps://"),
    )
    for table, prefix, speaks_tls, wanted in users:
        values = getattr(config, table)
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            if getattr(values, prefix + name) and not speaks_tls:
                yield table, prefix + name, f"has no effect unless {wanted}"
        if getattr(values, f"{prefix}ssl_keyfile") and not getattr(values, f"{prefix}ssl_certfile"):
            yield table, f"{prefix}ssl_keyfile", f"needs {prefix}ssl_certfile, the certificate it belongs to"


def _database(config: Config) -> Iterator[Broken]:
    if config.has("database") and config.database.rls and _names_dsn(config) and config.backend_of_database == "sqlite":
        yield "database", "rls", "needs PostgreSQL, and dsn is SQLite: tenants would not be kept apart"


def _names_dsn(config: Config) -> bool:
    # Without a dsn of its own the app may bring its engine, of either kind; it is looked at when it is there.
    return ("database", "dsn") in config.origins


def _prod(config: Config) -> Iterator[Broken]:
    store = config.tick_store
    if config.has("queue") and config.queue.backend == "memory":
        yield "queue", "backend", "is refused in prod: jobs in memory are lost with the process"
    if config.queue.scheduler_store == "memory" or (config.queue.scheduler and store == "memory"):
        yield "queue", "scheduler_store", "is memory, refused in prod: every process would run every schedule"
    if config.has("queue") and config.queue.backend == "rabbitmq" and _is_guest(config.queue.rabbitmq_url):
        yield "queue", "rabbitmq_url", "signs in as guest, refused in prod; give the service a user of its own"


def _is_guest(url: str) -> bool:
    parts = urlsplit(url)
    # Without a name in the URL the client signs in as guest.
    return unquote(parts.username or "guest") == "guest" and unquote(parts.password or "guest") == "guest"
