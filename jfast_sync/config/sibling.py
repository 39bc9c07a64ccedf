"""Keys that only the asynchronous jfastframework reads.

Both libraries may share one ``jfast.toml``; such a key is accepted with one warning and has no effect here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .forms import nearest

__all__ = ["FOREIGN_PLUGINS", "SECTIONS", "plugin_names", "reads_key", "reads_table", "reads_variable"]

SECTIONS = frozenset({"project", "scaffold", "workspace"})

_PLUGINS = """accounts auth channels gateway http idempotency llm mail metrics mongo notifications qdrant rag
    ratelimit sentry storage tenancy web websocket"""
FOREIGN_PLUGINS = frozenset(_PLUGINS.split())

_INFRASTRUCTURE = "include_infra image port_offset"
_SERVER = f"connect_timeout command_timeout breaker_failures breaker_cool_down {_INFRASTRUCTURE}"
_KEYS = {
    table: frozenset(names.split())
    for table, names in {
        "app": """version debug timezone host root_path plugins disabled_plugins docs_url openapi_url readiness_timeout
            cors_origins cors_origin_regex cors_allow_credentials cors_allow_methods cors_allow_headers trusted_hosts
            max_body_bytes request_timeout trusted_proxies security_headers csp csp_report_only frame_options
            referrer_policy permissions_policy hsts_seconds hsts_include_subdomains hsts_preload""",
        "plugins": "disabled paths",
        "database": f"""echo max_overflow pool_pre_ping pool_recycle pool_timeout ping_timeout session_timezone
            connections default_connection read_write_split pin_window pin_cookie pin_on_unsafe_methods
            tenant_dsn_template tenant_dsn_env_template tenant_max_engines tenant_pool_size tenant_max_overflow
            server_max_connections database user {_SERVER}""",
        "queue": "prefetch rabbitmq_include_infra rabbitmq_port_offset",
        "outbox": "",
        "events": "enable_auto_commit include_infra port_offset",
        "cache": f"default_ttl stampede_lock_ttl stampede_wait {_SERVER}",
        "observability": "access_log tenant_header",
    }.items()
}


def reads_key(table: str, name: str) -> bool:
    return name in _KEYS.get(table, ())


def reads_table(name: str) -> bool:
    """Whether ``[plugin.<name>]`` is a table of the sibling alone. ``telemetry`` has no keys here."""
    return name in FOREIGN_PLUGINS or name == "telemetry"


def reads_variable(table: str, name: str) -> bool:
    """Whether a variable's part after the prefix, in lower case, names one of the sibling's keys.

    Its further databases have a variable each, ``JFAST_DB_<NAME>_DSN``.
    """
    return reads_key(table, name) or (table == "database" and re.fullmatch(r"(?!listen_)\w+_dsn", name) is not None)


def plugin_names(known: tuple[str, ...]) -> Callable[[tuple[str, ...]], str | None]:
    """A check for ``[plugins] enabled``: every name belongs to this library or to its sibling."""

    def check(values: tuple[str, ...]) -> str | None:
        wrong = [value for value in values if value not in known and value not in FOREIGN_PLUGINS]
        if not wrong:
            return None
        return f"there is no plugin {wrong[0]!r}{nearest(wrong[0], known)} (plugins: {', '.join(known)})"

    return check
