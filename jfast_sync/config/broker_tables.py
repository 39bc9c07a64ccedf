"""The tables of Kafka and Redis; the rest are in ``tables``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from . import forms
from .keys import Table, key

__all__ = ["Cache", "Events"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Events(Table):
    """Events between services, by Kafka."""

    prefixes: ClassVar[tuple[str, ...]] = ("EVENTS",)

    bootstrap_servers: str = key(
        "localhost:9092",
        "Kafka's addresses, separated by commas.",
        check=forms.servers,
        form="host:port, host:port, ...",
    )
    consumer_group: str = key("", "Kafka's consumer group.", shown_default="the app's name")
    topic_prefix: str = key(
        "", "Put before every topic's name.", check=forms.topic_prefix, form="letters, digits, . _ -"
    )
    auto_offset_reset: str = key("earliest", "Where a group without an offset begins.", choices=("earliest", "latest"))
    consume: bool = key(True, "Consume in this process. `false` only publishes.")
    max_poll_interval_ms: int = key(
        300_000,
        "Longest time between two polls before Kafka gives the partitions away.",
        unit="ms",
        least=1000,
        most=86_400_000,
    )
    security_protocol: str = key(
        "PLAINTEXT",
        "How Kafka is spoken to.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    ssl_cafile: str | None = key(None, "Certificates the server's own is checked against (PEM file).")
    ssl_certfile: str | None = key(None, "This client's certificate (PEM file).")
    ssl_keyfile: str | None = key(None, "The key of that certificate (PEM file).")
    sasl_mechanism: str | None = key(
        None, "How the client signs in.", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    )
    sasl_username: str | None = key(None, "Name the client signs in with.")
    sasl_password: str | None = key(None, "Password the client signs in with.", secret="all")
    image: str = key("apache/kafka:3.9.1", "Image of the Kafka container in generated infrastructure.")
    host_port: int | None = key(
        None,
        "Port the generated Kafka publishes and advertises on the host.",
        least=1,
        most=65535,
        shown_default="`[app] port` + 2",
    )
    advertised_host: str = key("localhost", "Host name the generated Kafka advertises outside its network.")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cache(Table):
    """Redis (or Valkey)."""

    prefixes: ClassVar[tuple[str, ...]] = ("CACHE",)

    url: str = key(
        "redis://localhost:6379/0",
        "The Redis server; `rediss://` speaks TLS, `redis+sentinel://host:port,host:port/service/db` asks Sentinels.",
        secret="url",
        check=forms.redis_url,
        form="redis://..., rediss://..., unix://..., redis+sentinel://... or rediss+sentinel://...",
    )
    key_prefix: str = key("", "Put before every key.", check=forms.key_prefix, form="no spaces, no { or }")
    ssl_cafile: str | None = key(None, "Certificates the server's own is checked against (PEM file).")
    ssl_certfile: str | None = key(None, "This client's certificate (PEM file).")
    ssl_keyfile: str | None = key(None, "The key of that certificate (PEM file).")
