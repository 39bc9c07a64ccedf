"""Where values come from: the file, the environment, the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from jfast_sync.errors import ConfigError
from jfast_sync.redact import MASK, redact

from . import sibling
from .forms import nearest
from .keys import Key
from .tables import TABLES
from .values import shown

__all__ = ["Found", "Origin", "Setting", "from_environment", "from_file", "from_flags", "read_toml"]

Origin = Literal["default", "file", "environment", "flag"]

KEYS = {table.short_name(): table.keys() for table in TABLES}
TITLES = {table.short_name(): table.title() for table in TABLES}
_PREFIXES = {f"JFAST_{prefix}_": table.short_name() for table in TABLES for prefix in table.prefixes}
_VARIABLES = {name: key for keys in KEYS.values() for key in keys.values() for name in key.environment}
_IS_SECRET = {key.name: bool(key.secret) for keys in KEYS.values() for key in keys.values()}
_WRONG_PREFIXES = ("JFAST_DATABASE_", "JFAST_PLUGIN_")
# Kubernetes gives every pod such variables for every service; one may be called "jfast-queue".
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")
_SLIP = 0.85
_SECRET_LIKE = re.compile(r"pass|pwd|secret|token|key|credential|dsn|url", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value as a source holds it."""

    key: Key
    raw: object
    origin: Origin
    place: str
    """Where it stands, for messages."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one source holds, and what is wrong in it."""

    settings: list[Setting] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file. Raises ConfigError naming file, line and column of what is not TOML."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        before = exc.object[: exc.start]
        line, column = before.count(b"\n") + 1, exc.start - before.rfind(b"\n")
        raise ConfigError(f"{path}:{line}:{column}: not UTF-8 text") from exc
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(_toml_problem(path, text, str(exc))) from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: not usable: values are nested too deeply") from exc


def from_file(path: Path, content: Mapping[str, object]) -> Found:
    found = Found()
    for section, body in content.items():
        if section == "plugin" and isinstance(body, Mapping):
            for name, table in body.items():
                _read_table(found, path, name, f"plugin.{name}", table)
        elif section in ("app", "plugins"):
            _read_table(found, path, section, section, body)
        elif section == "plugin":
            found.problems.append(
                f"{path}: plugin = {_show_unknown(section, body)}: must hold tables, such as [plugin.queue]"
            )
        elif section in sibling.SECTIONS:
            found.warnings.append(_ignored(f"{path}: [{section}]"))
        else:
            text = f"[{section}]" if isinstance(body, Mapping) else f"{section} = {_show_unknown(section, body)}"
            found.problems.append(f"{path}: {text}: {_no_table(section)}")
    return found


def from_environment(environ: Mapping[str, str]) -> Found:
    """Read every ``JFAST_...`` variable of a known table; an empty one counts as not set."""
    found = Found()
    given = {name: value for name, value in sorted(environ.items()) if _is_meant(name, value)}
    for name, value in given.items():
        key = _VARIABLES.get(name)
        if key is None:
            _unknown_variable(found, name, value)
        elif name == next(other for other in key.environment if other in given):
            place = f"environment: {name} ([{TITLES[key.table]}] {key.name})"
            found.settings.append(Setting(key=key, raw=value, origin="environment", place=place))
    return found


def from_flags(flags: Mapping[str, Mapping[str, object]]) -> Found:
    """Read the command line's values, by table and key; a None counts as not given."""
    found = Found()
    for title, values in flags.items():
        name = title.removeprefix("plugin.")
        for key_name, raw in values.items():
            place = f"command line: [{TITLES.get(name, title)}] {key_name}"
            key = KEYS.get(name, {}).get(key_name)
            if key is None:
                found.problems.append(f"{place}: there is no such key")
            elif raw is not None:
                found.settings.append(Setting(key=key, raw=raw, origin="flag", place=place))
    return found


def _read_table(found: Found, path: Path, name: str, title: str, table: object) -> None:
    keys = KEYS.get(name) if title == TITLES.get(name) else None
    if keys is None:
        if sibling.reads_table(name):
            found.warnings.append(_ignored(f"{path}: [{title}]"))
        else:
            found.problems.append(f"{path}: [{title}]: {_no_table(name)}")
        return
    if not isinstance(table, Mapping):
        found.problems.append(f"{path}: {title} = {_show_unknown(title, table)}: must be a table, [{title}]")
        return
    for key_name, raw in table.items():
        place = f"{path}: [{title}] {key_name}"
        if key_name in keys:
            found.settings.append(Setting(key=keys[key_name], raw=raw, origin="file", place=place))
        elif sibling.reads_key(name, key_name):
            found.warnings.append(_ignored(place))
        else:
            found.problems.append(
                f"{place} = {_show_unknown(key_name, raw)}: unknown key{_nearest_key(name, key_name)}"
            )


def _nearest_key(table: str, name: str) -> str:
    if here := nearest(name, KEYS[table]):
        return here
    elsewhere = [TITLES[other] for other, keys in KEYS.items() if name in keys]
    return f"; it belongs to [{elsewhere[0]}]" if elsewhere else f" (known: {', '.join(KEYS[table])})"


def _no_table(name: str) -> str:
    if name in KEYS and name not in ("app", "plugins"):
        return f"unknown table; did you mean [{TITLES[name]}]?"
    close = get_close_matches(name, KEYS, n=1)
    known = ", ".join(f"[{title}]" for title in TITLES.values())
    return "unknown table" + (f"; did you mean [{TITLES[close[0]]}]?" if close else f" (tables: {known})")


def _is_meant(name: str, value: str) -> bool:
    if not value.strip():
        return False
    if name in _VARIABLES:
        return not (name.endswith("_PORT") and _SERVICE_LINK_VALUE.match(value))
    if _SERVICE_LINK.search(name):
        return False
    # Others may own a JFAST_ variable, but hardly one that is a slip away from a name of ours.
    return name.startswith((*_PREFIXES, *_WRONG_PREFIXES)) or (
        name.startswith("JFAST_") and bool(get_close_matches(name, _VARIABLES, n=1, cutoff=_SLIP))
    )


def _unknown_variable(found: Found, name: str, value: str) -> None:
    place = f"environment: {name}"
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    if prefix and sibling.reads_variable(_PREFIXES[prefix], name.removeprefix(prefix).lower()):
        found.warnings.append(_ignored(place))
        return
    meant = name.replace("JFAST_DATABASE_", "JFAST_DB_").replace("JFAST_PLUGIN_", "JFAST_")
    hint = f"; did you mean {meant}?" if meant in _VARIABLES else nearest(meant, _VARIABLES)
    found.problems.append(f"{place} = {_show_unknown(name.removeprefix(prefix), value)}: no key has this name{hint}")


def _ignored(place: str) -> str:
    return f"{place} is read only by the asynchronous jfastframework; it has no effect here"


def _show_unknown(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "{...}"
    # A mistyped key may hold a password just as well as the right one.
    meant = get_close_matches(name.lower(), _IS_SECRET, n=1, cutoff=0.5)
    if _SECRET_LIKE.search(name) or "@" in str(value) or (meant and _IS_SECRET[meant[0]]):
        return MASK
    return redact(shown(value))


def _toml_problem(path: Path, text: str, problem: str) -> str:
    match = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", problem)
    if match is None:
        return f"{path}: not valid TOML: {problem}"
    last = text.count("\n") + 1
    line, column = match.groups() if match.group(1) else (last, len(text) - text.rfind("\n"))
    return f"{path}:{line}:{column}: not valid TOML: {problem[: match.start()]} (line {line}, column {column})"
