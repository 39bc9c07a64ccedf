"""Keys that depend on each other, and what prod refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from jfast_sync.config import Config, load_config
from jfast_sync.errors import ConfigError

POSTGRES = {"JFAST_DB_DSN": "postgresql://u@h/db"}
ALL = {"JFAST_PLUGINS_ENABLED": "database,queue,outbox,events,cache"}


def load(tmp_path: Path, **environ: str) -> Config:
    (tmp_path / "jfast.toml").write_text("")
    return load_config(tmp_path, environ=environ)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"JFAST_PLUGINS_ENABLED": "queue,outbox", "JFAST_QUEUE_BACKEND": "memory"}, "outbox needs database"),
        ({"JFAST_PLUGINS_ENABLED": "queue"}, 'backend (default) = "auto": keeps jobs in the primary database'),
        ({"JFAST_QUEUE_BACKEND": "redis"}, "uses the cache plugin's server"),
        ({"JFAST_QUEUE_BACKEND": "postgres", "JFAST_DB_DSN": "sqlite:///x.db"}, "[plugin.database] dsn is sqlite"),
        ({"JFAST_QUEUE_BACKEND": "sqlite", **POSTGRES}, "[plugin.database] dsn is postgres"),
        ({"JFAST_QUEUE_BACKEND": "memory", "JFAST_QUEUE_CLAIM": "registered"}, "only SQL queues"),
        ({"JFAST_QUEUE_BACKEND": "my.own:Queue", "JFAST_QUEUE_CLAIM": "registered"}, "only SQL queues"),
        ({"JFAST_QUEUE_SCHEDULER_STORE": "cache"}, "uses the cache plugin's server"),
        ({"JFAST_PLUGINS_ENABLED": "database", "JFAST_QUEUE_SCHEDULER": "true"}, "needs the queue plugin"),
        (
            {
                "JFAST_PLUGINS_ENABLED": "queue",
                "JFAST_QUEUE_BACKEND": "rabbitmq",
                "JFAST_QUEUE_SCHEDULER": "true",
            },
            'add "database" or "cache" to [plugins] enabled, or write "memory"',
        ),
        ({"JFAST_DB_RLS": "true", "JFAST_DB_DSN": "sqlite:///x.db"}, "needs PostgreSQL"),
        (
            {**ALL, "JFAST_EVENTS_SECURITY_PROTOCOL": "SASL_SSL"},
            "needs sasl_mechanism, sasl_username and sasl_password",
        ),
        ({**ALL, "JFAST_EVENTS_SASL_PASSWORD": "hunter2"}, "has no effect unless security_protocol"),
        ({"JFAST_CACHE_SSL_CAFILE": "ca.pem"}, "has no effect unless url begins with rediss://"),
        ({"JFAST_QUEUE_RABBITMQ_SSL_CAFILE": "ca.pem"}, "has no effect unless rabbitmq_url begins with amqps://"),
        ({"JFAST_CACHE_URL": "rediss://h", "JFAST_CACHE_SSL_KEYFILE": "k"}, "needs ssl_certfile"),
        ({"JFAST_ENV": "prod", "JFAST_QUEUE_BACKEND": "memory"}, "refused in prod: jobs in memory"),
        ({"JFAST_ENV": "PROD", "JFAST_QUEUE_SCHEDULER_STORE": "memory"}, "refused in prod: every process"),
        ({"JFAST_ENV": "prod", "JFAST_QUEUE_BACKEND": "rabbitmq"}, 'rabbitmq_url (default) = "amqp://guest:***@'),
        (
            {
                "JFAST_ENV": "prod",
                "JFAST_QUEUE_BACKEND": "rabbitmq",
                "JFAST_QUEUE_RABBITMQ_URL": "amqp://%67uest:guest@h/",
            },
            "signs in as guest",
        ),
        (
            {"JFAST_ENV": "prod", "JFAST_QUEUE_BACKEND": "rabbitmq", "JFAST_QUEUE_RABBITMQ_URL": "amqps://h/"},
            "signs in as guest",
        ),
        (
            {
                "JFAST_ENV": "prod",
                "JFAST_PLUGINS_ENABLED": "queue",
                "JFAST_QUEUE_BACKEND": "my.own:Queue",
                "JFAST_QUEUE_SCHEDULER": "true",
            },
            "scheduler_store",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **environ)
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "backend"),
    [
        ({}, "sqlite"),
        (POSTGRES, "postgres"),
        ({"JFAST_DB_DSN": "postgres://u@h/db", "JFAST_QUEUE_CLAIM": "registered"}, "postgres"),
        ({"JFAST_DB_DSN": "postgresql+asyncpg://u@h/db", "JFAST_DB_RLS": "on", "JFAST_ENV": "prod"}, "postgres"),
        ({"JFAST_QUEUE_BACKEND": "memory"}, "memory"),
        ({**ALL, "JFAST_QUEUE_BACKEND": "redis", "JFAST_ENV": "prod"}, "redis"),
        ({"JFAST_QUEUE_BACKEND": "rabbitmq"}, "rabbitmq"),
        ({"JFAST_QUEUE_BACKEND": "my.own:Queue"}, "my.own:Queue"),
        (
            {
                "JFAST_PLUGINS_ENABLED": "queue",
                "JFAST_QUEUE_BACKEND": "rabbitmq",
                "JFAST_QUEUE_SCHEDULER": "true",
                "JFAST_QUEUE_SCHEDULER_STORE": "memory",
            },
            "rabbitmq",
        ),
        (
            {"JFAST_QUEUE_BACKEND": "rabbitmq", "JFAST_QUEUE_RABBITMQ_URL": "amqp://a:b@h/", "JFAST_ENV": "prod"},
            "rabbitmq",
        ),
        ({"JFAST_PLUGINS_ENABLED": "observability", "JFAST_ENV": "prod"}, "sqlite"),
    ],
)
def test_what_goes_together_is_accepted(tmp_path: Path, environ: dict[str, str], backend: str) -> None:
    assert load(tmp_path, **environ).backend == backend


@pytest.mark.parametrize(
    ("environ", "served"),
    [
        ({}, True),
        ({"JFAST_ENV": "prod"}, False),
        ({"JFAST_ENV": "prod", "JFAST_QUEUE_EXPOSE_STATS": "true"}, True),
        ({"JFAST_QUEUE_EXPOSE_STATS": "false"}, False),
    ],
)
def test_stats_are_served_except_in_prod(tmp_path: Path, environ: dict[str, str], served: bool) -> None:
    assert load(tmp_path, **environ).exposes_stats is served


@pytest.mark.parametrize(
    ("environ", "json_lines"),
    [({}, False), ({"JFAST_ENV": "dev"}, True), ({"JFAST_LOG_JSON_LOGS": "1"}, True)],
)
def test_logs_are_json_except_in_local(tmp_path: Path, environ: dict[str, str], json_lines: bool) -> None:
    assert load(tmp_path, **environ).logs_json is json_lines


def test_ticks_are_kept_where_there_is_a_place(tmp_path: Path) -> None:
    assert load(tmp_path).tick_store == "database"
    own = {"JFAST_QUEUE_BACKEND": "my.own:Queue"}
    assert load(tmp_path, **own, JFAST_PLUGINS_ENABLED="queue,cache").tick_store == "cache"
    assert load(tmp_path, **own, JFAST_PLUGINS_ENABLED="queue").tick_store == "memory"


def test_the_inbox_outlasts_a_lease_and_all_retries():
    day = {"outbox": {"inbox_retention_days": 1}}
    load_config(overrides={**day, "queue": {"max_attempts": 290}})
    with pytest.raises(ConfigError, match=r"inbox_retention_days.*must outlast a lease and all retries"):
        load_config(overrides={**day, "queue": {"max_attempts": 300}})
    with pytest.raises(ConfigError, match="inbox_retention_days"):
        load_config(overrides={"outbox": {"inbox_retention_days": 0.5}, "queue": {"visibility_timeout": 50_000}})
    load_config(overrides={**day, "queue": {"max_attempts": 100_000, "backoff_base": 0}})
