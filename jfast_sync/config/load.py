"""The configuration, built once: defaults, then the file, then the environment, then flags."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jfast_sync.errors import ConfigError
from jfast_sync.redact import MASK

from . import sibling
from .describe import Row, rows
from .rules import broken_rules
from .sources import TITLES, Found, Origin, Setting, from_environment, from_file, from_flags, read_toml
from .tables import TABLES, App, Cache, Database, Events, Observability, Outbox, Plugins, Queue
from .values import read_value, shown

__all__ = ["FILE_NAME", "Config", "load_config"]

FILE_NAME = "jfast.toml"

_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:|[A-Za-z]:[\\/])([^?]+)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything configured, checked and complete. Printing it shows no secret."""

    app: App = field(default_factory=App)
    plugins: Plugins = field(default_factory=Plugins)
    database: Database = field(default_factory=Database)
    queue: Queue = field(default_factory=Queue)
    outbox: Outbox = field(default_factory=Outbox)
    events: Events = field(default_factory=Events)
    cache: Cache = field(default_factory=Cache)
    observability: Observability = field(default_factory=Observability)
    source: Path | None = None
    """The file that was read, or None."""
    folder: Path = field(default_factory=Path.cwd)
    """The folder of the file (else the current one), which relative paths are counted from."""
    warnings: tuple[str, ...] = ()
    """What deserves a line at start: keys that only the asynchronous sibling reads."""
    origins: Mapping[tuple[str, str], Origin] = field(default_factory=dict)
    """Where values come from, by (table, key); absent means the default."""

    def has(self, plugin: str) -> bool:
        """Whether the plugin is enabled."""
        return plugin in self.plugins.enabled

    @property
    def backend_of_database(self) -> Literal["postgres", "sqlite"]:
        """The SQL queue's backend that fits the primary database."""
        return "sqlite" if self.database.dsn.startswith("sqlite") else "postgres"

    @property
    def backend(self) -> str:
        """The queue's backend, with ``auto`` resolved."""
        return self.backend_of_database if self.queue.backend == "auto" else self.queue.backend

    @property
    def jobs_table(self) -> str | None:
        """The table of jobs in the primary database; None where the jobs are kept elsewhere."""
        return None if self.queue.backend in ("memory", "redis", "rabbitmq") else self.queue.name

    @property
    def tick_store(self) -> str:
        """Where ticks are claimed, with ``auto`` resolved: database, cache or memory."""
        if self.queue.scheduler_store != "auto":
            return self.queue.scheduler_store
        return "database" if self.has("database") else "cache" if self.has("cache") else "memory"

    @property
    def forgets_ticks_of_others(self) -> bool:
        """Whether processes share the queue, but each claims its ticks for itself."""
        in_a_server = self.queue.backend not in ("auto", "postgres", "sqlite", "memory") or self.has("database")
        return self.tick_store == "memory" and self.queue.backend != "memory" and in_a_server

    @property
    def exposes_stats(self) -> bool:
        """Whether ``/queue/stats`` is served."""
        return self.app.env != "prod" if self.queue.expose_stats is None else self.queue.expose_stats

    @property
    def logs_json(self) -> bool:
        """Whether structured logs are JSON lines."""
        return self.app.env != "local" if self.observability.json_logs is None else self.observability.json_logs

    def describe(self) -> list[Row]:
        """Every key with its value, default and origin; secrets are masked."""
        return rows(self)


def load_config(
    path: Path | str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
) -> Config:
    """Read the configuration: flags win over the environment, which wins over the file, which wins over defaults.

    ``path`` names the file or its folder; None means ``./jfast.toml`` if there is one. ``overrides``
    holds the command line's values by table and key, for example ``{"queue": {"backend": "memory"}}``;
    a None in it counts as not given.

    Raises :class:`~jfast_sync.errors.ConfigError` with one message that names every problem.
    """
    source = _find_file(path)
    folder = _absolute_path(source).parent if source else Path.cwd()
    found = [
        from_file(source, read_toml(source)) if source else Found(),
        from_environment(environ),
        from_flags(overrides or {}),
    ]
    problems = [problem for part in found for problem in part.problems]
    settings = [setting for part in found for setting in part.settings]
    values, kept = _read_values(settings, problems)
    _refuse(problems)
    config = _complete(values, kept, source, folder, [warning for part in found for warning in part.warnings])
    _refuse(_rule_problem(config, kept, *broken) for broken in broken_rules(config))
    return config


def _find_file(path: Path | str | None) -> Path | None:
    if path is None:
        default = Path(FILE_NAME)
        return default if os.path.lexists(default) else None
    named = Path(path)
    if os.path.isdir(named):  # noqa: PTH112 - Path.is_dir raises below a folder that cannot be entered
        named = named / FILE_NAME
    if not os.path.lexists(named):
        raise ConfigError(f"{named}: there is no such file; give the path of a jfast.toml or of the folder it is in")
    return named


def _read_values(
    settings: Iterable[Setting], problems: list[str]
) -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], Setting]]:
    values: dict[tuple[str, str], Any] = {}
    kept: dict[tuple[str, str], Setting] = {}
    for setting in settings:
        name = setting.key.table, setting.key.name
        try:
            # A later source takes an earlier one's place; what the earlier one holds is checked all the same.
            values[name] = read_value(setting.key, setting.raw, textual=setting.origin == "environment")
            kept[name] = setting
        except ValueError as exc:
            problems.append(f"{setting.place} = {_shown(setting)}: {exc}")
    return values, kept


def _shown(setting: Setting) -> str:
    return MASK if setting.key.secret else shown(setting.raw)


def _complete(
    values: dict[tuple[str, str], Any],
    kept: dict[tuple[str, str], Setting],
    source: Path | None,
    folder: Path,
    warnings: list[str],
) -> Config:
    tables: dict[str, Any] = {}
    for table in TABLES:
        short = table.short_name()
        tables[short] = table(**{name: value for (owner, name), value in values.items() if owner == short})
    plugins, foreign = _own_plugins(tables["plugins"])
    if foreign:
        place = kept["plugins", "enabled"].place
        warnings += [f"{place}: {name} is a plugin of the asynchronous jfastframework; ignored" for name in foreign]
    config = Config(
        **tables | {"plugins": plugins},
        source=source,
        folder=folder,
        warnings=tuple(warnings),
        origins={name: setting.origin for name, setting in kept.items()},
    )
    # The shell's user means the folder he is in; everything else must mean one file in every process.
    base = Path.cwd() if config.origins.get(("database", "dsn")) == "flag" else folder
    return replace(
        config,
        database=replace(config.database, dsn=_absolute(config.database.dsn, base)),
        events=replace(config.events, consumer_group=config.events.consumer_group or config.app.name),
    )


def _own_plugins(plugins: Plugins) -> tuple[Plugins, list[str]]:
    foreign = [name for name in plugins.enabled if name in sibling.FOREIGN_PLUGINS]
    return Plugins(enabled=tuple(name for name in plugins.enabled if name not in foreign)), foreign


def _absolute(dsn: str, folder: Path) -> str:
    match = _SQLITE_FILE.fullmatch(dsn)
    return dsn if match is None else f"{match[1]}{_absolute_path(folder / match[2])}{match[3]}"


def _absolute_path(path: Path) -> Path:
    # A mounted ConfigMap is a link into a folder that changes with every update: do not follow it.
    return Path(os.path.abspath(path))  # noqa: PTH100


def _rule_problem(config: Config, kept: dict[tuple[str, str], Setting], table: str, name: str, wrong: str) -> str:
    setting = kept.get((table, name))
    place = setting.place if setting else f"[{TITLES[table]}] {name} (default)"
    values = getattr(config, table)
    return f"{place} = {shown(values.keys()[name].show(getattr(values, name)))}: {wrong}"


def _refuse(problems: Iterable[str]) -> None:
    lines = list(problems)
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        raise ConfigError("\n  ".join([f"{len(lines)} problems in the configuration:", *lines]))
