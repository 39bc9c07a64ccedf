"""The tables of ``jfast.toml`` with every key, its default, its bounds and its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from . import forms, sibling
from .broker_tables import Cache, Events
from .keys import Table, key

__all__ = [
    "BACKENDS",
    "PLUGINS",
    "TABLES",
    "App",
    "Cache",
    "Database",
    "Events",
    "Observability",
    "Outbox",
    "Plugins",
    "Queue",
]

BACKENDS = ("auto", "postgres", "sqlite", "redis", "rabbitmq", "memory")
PLUGINS = ("observability", "database", "queue", "outbox", "events", "cache", "telemetry")

_DAY = 86_400.0
_YEAR = 366 * _DAY


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class App(Table):
    """The service itself."""

    prefixes: ClassVar[tuple[str, ...]] = ("APP",)

    name: str = key(
        "jfast-service",
        "The service's name, in logs and as Kafka's default consumer group.",
        check=forms.printable,
        form="1 to 100 printable characters",
    )
    env: str = key(
        "local",
        "Where it runs. `prod` refuses what is only fit for trying out and keeps details to itself.",
        choices=("local", "dev", "staging", "prod"),
        also=("JFAST_ENV",),
    )
    port: int = key(
        8000,
        "Base port of the service; generated infrastructure counts from it.",
        least=1,
        most=65535,
        also=("JFAST_PORT",),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plugins(Table):
    """What the service is made of."""

    prefixes: ClassVar[tuple[str, ...]] = ("PLUGINS",)

    enabled: tuple[str, ...] = key(
        ("observability", "database", "queue", "outbox"),
        "The parts in use. `events` is Kafka, `cache` is Redis, `telemetry` is OpenTelemetry; "
        "`observability` is structured logs with request id, tenant and job.",
        check=sibling.plugin_names(PLUGINS),
        form="names out of " + ", ".join(PLUGINS),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Database(Table):
    """The primary database."""

    prefixes: ClassVar[tuple[str, ...]] = ("DB",)

    dsn: str = key(
        "sqlite:///jfast.db",
        "PostgreSQL or SQLite. A relative SQLite path is counted from the folder of `jfast.toml`.",
        secret="url",
        check=forms.sql_url,
        form="postgresql://..., postgres://..., sqlite:///...",
    )
    pool_size: int | None = key(
        None,
        "Connections one process keeps. Left out, it is sized from the number of threads.",
        least=1,
        most=10_000,
        shown_default="from the threads",
    )
    rls: bool = key(False, "Row-level security: every session and job works as its tenant (PostgreSQL).")
    pgbouncer: bool = key(
        False, "The database is behind PgBouncer in transaction pooling: no LISTEN, no prepared statements."
    )
    listen_dsn: str | None = key(
        None,
        "A direct connection for LISTEN where `dsn` leads through a pooler.",
        secret="url",
        check=forms.postgres_url,
        form="postgresql://...",
        shown_default="as `dsn`",
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Queue(Table):
    """The queue, its worker and the scheduler."""

    prefixes: ClassVar[tuple[str, ...]] = ("QUEUE",)

    backend: str = key(
        "auto",
        "Where jobs are kept. `auto` is the SQL queue in the primary database; "
        "`module:Class` names a backend of your own.",
        check=forms.backend(BACKENDS),
        form=", ".join(BACKENDS) + " or module:Class",
    )
    name: str = key(
        "jfast_jobs",
        "Name of the table, or of the broker's queues and keys.",
        check=forms.identifier,
        form="a-z, 0-9 and _, not a digit first, up to 41 characters",
    )
    visibility_timeout: float = key(
        60.0,
        "Length of a lease. It is renewed while a job runs; a worker that dies keeps its jobs this long.",
        unit="seconds",
        least=1,
        most=_DAY,
    )
    max_attempts: int = key(3, "Starts of a job before it becomes a dead letter.", least=1, most=100_000)
    job_timeout: float = key(
        600.0, "Longest run of a job. 0 switches the limit off.", unit="seconds", least=0, most=_YEAR
    )
    backoff_base: float = key(
        2.0, "Delay after the first failed attempt; it doubles with each one.", unit="seconds", least=0, most=_YEAR
    )
    backoff_cap: float = key(300.0, "Longest delay between two attempts.", unit="seconds", least=0, most=_YEAR)
    backoff_jitter: float = key(
        0.0, "Share of the delay that is drawn at random, so that retries do not come together.", least=0, most=1
    )
    max_payload_bytes: int = key(1_048_576, "Largest payload as JSON.", unit="bytes", least=2, most=268_435_456)
    snooze_max_age: float = key(
        7 * _DAY,
        "Age at which a job that only snoozes becomes a dead letter.",
        unit="seconds",
        least=1,
        most=10 * _YEAR,
    )
    keep_done: float = key(
        0.0,
        "How long finished jobs are kept for `jobs show`. 0 deletes them at once.",
        unit="seconds",
        least=0,
        most=10 * _YEAR,
    )
    listen: bool = key(True, "Wake idle workers by LISTEN/NOTIFY (PostgreSQL). Polling goes on beside it.")
    poll_interval: float = key(
        1.0, "How often an idle worker looks for due jobs by itself.", unit="seconds", least=0.01, most=3600
    )
    expose_stats: bool | None = key(
        None,
        "Serve `/queue/stats`. Left out, it is served everywhere except in prod.",
        shown_default="unset",
    )
    scheduler: bool = key(False, "Run the schedules in this process.")
    scheduler_store: str = key(
        "auto",
        "Where claimed ticks are written. `auto` is the database, else the cache, else memory with the memory backend.",
        choices=("auto", "database", "cache", "memory"),
    )
    scheduler_retention_days: float = key(7.0, "How long claimed ticks are kept.", unit="days", least=1, most=3660)
    claim: str = key(
        "all",
        "`registered` claims only tasks that this process knows (SQL queues).",
        choices=("all", "registered"),
    )
    imports: tuple[str, ...] = key(
        (),
        "Modules imported at start, besides `modules/*/tasks.py`, because they declare tasks.",
        check=forms.module_names,
        form="dotted module names",
    )
    rabbitmq_url: str = key(
        "amqp://guest:guest@localhost:5672/",
        "The RabbitMQ server; `amqps://` speaks TLS.",
        secret="url",
        check=forms.url("amqp", "amqps"),
        form="amqp://... or amqps://...",
    )
    rabbitmq_queue_type: str = key(
        "quorum",
        "Kind of the RabbitMQ queues. `classic` is faster and loses jobs when a broker is killed.",
        choices=("quorum", "classic"),
    )
    rabbitmq_ssl_cafile: str | None = key(None, "Certificates RabbitMQ's own is checked against (PEM file).")
    rabbitmq_ssl_certfile: str | None = key(None, "This client's certificate for RabbitMQ (PEM file).")
    rabbitmq_ssl_keyfile: str | None = key(None, "The key of that certificate (PEM file).")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outbox(Table):
    """The transactional outbox and the inbox."""

    prefixes: ClassVar[tuple[str, ...]] = ("OUTBOX",)

    relay: bool = key(True, "Deliver outbox rows from this process.")
    interval_seconds: float = key(
        1.0,
        "How often the relay looks for rows; a commit lets it look at once anyway. Where all of this service's jobs go "
        "straight into the queue (it shares the database, and there is no event bus) it is 10 seconds or more.",
        unit="seconds",
        least=0.01,
        most=3600,
    )
    batch_size: int = key(100, "Rows a relay takes at a time.", least=1, most=10_000)
    max_attempts: int = key(
        20, "Attempts to deliver a row before it is dead; 20 are a little over an hour.", least=1, most=100_000
    )
    retention_days: float = key(7.0, "How long delivered rows are kept.", unit="days", least=0, most=3660)
    stale_after_seconds: float = key(
        300.0, "Age of the oldest waiting row from which `/ready` is degraded.", unit="seconds", least=1, most=_YEAR
    )
    inbox_retention_days: float = key(
        7.0,
        "How long the inbox remembers a message; never shorter than a lease and all retries.",
        unit="days",
        least=0.01,
        most=3660,
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Observability(Table):
    """Logs."""

    prefixes: ClassVar[tuple[str, ...]] = ("LOG", "OBSERVABILITY")

    level: str = key("INFO", "Lowest level that is logged.", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))
    json_logs: bool | None = key(
        None,
        "One JSON object per line; `false` writes lines for people. Left out, it is JSON except in local.",
        shown_default="unset",
    )


TABLES: tuple[type[Table], ...] = (App, Plugins, Database, Queue, Outbox, Events, Cache, Observability)
