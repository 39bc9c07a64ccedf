"""Forms a value must have; each check answers None or what is wanted instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from urllib.parse import urlsplit

__all__ = [
    "backend",
    "identifier",
    "key_prefix",
    "module_names",
    "nearest",
    "postgres_url",
    "printable",
    "redis_url",
    "servers",
    "sql_url",
    "topic_prefix",
    "url",
]

_MODULE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_SQL_SCHEMES = ("postgresql", "postgres", "sqlite")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word nearest to a mistyped one, as ``"; did you mean ...?"``, or an empty text."""
    match = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else ""


def backend(known: tuple[str, ...]) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if value in known or re.fullmatch(rf"{_MODULE}:{_MODULE}", value):
            return None
        return f"must be one of {', '.join(known)}, or module:Class{nearest(value, known)}"

    return check


def identifier(value: str) -> str | None:
    if re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", value):
        return None
    return "must be lower-case letters, digits and _, not a digit first, at most 41 characters"


def module_names(values: tuple[str, ...]) -> str | None:
    wrong = next((value for value in values if not re.fullmatch(_MODULE, value)), None)
    return None if wrong is None else f"{wrong!r} is not a module's dotted name"


def printable(value: str) -> str | None:
    return None if 1 <= len(value) <= 100 and value.isprintable() else "must be 1 to 100 printable characters"


def topic_prefix(value: str) -> str | None:
    return None if re.fullmatch(r"[A-Za-z0-9._-]{0,100}", value) else "must be letters, digits, '.', '_' or '-'"


def key_prefix(value: str) -> str | None:
    return None if re.fullmatch(r"[^\s{}\x00-\x1f]{0,100}", value) else "must have no spaces and no { or }"


def servers(value: str) -> str | None:
    parts = [part.strip() for part in value.split(",")]
    if all(re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@,]+)(?::\d{1,5})?", part) for part in parts):
        return None
    return "must be host:port, several separated by commas"


def url(*schemes: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        scheme, separator, rest = value.partition("://")
        if separator and scheme in schemes and rest:
            return None if _is_readable(value) else "cannot be read: percent-encode special characters in the password"
        return "must be a URL that begins with " + " or ".join(f"{scheme}://" for scheme in schemes)

    return check


def _is_readable(value: str) -> bool:
    try:
        _ = urlsplit(value).port
    except ValueError:
        return False
    return True


def redis_url(value: str) -> str | None:
    scheme, _, rest = value.partition("://")
    if scheme not in ("redis+sentinel", "rediss+sentinel"):
        return url("redis", "rediss", "unix")(value)
    named, slash, service = rest.rpartition("@")[2].partition("/")
    if not slash or not service or servers(named) is not None:
        return f"must be {scheme}://host:port,host:port/service or .../service/db"
    return None


def sql_url(value: str) -> str | None:
    scheme, separator, _ = value.partition("://")
    if separator and scheme.partition("+")[0] in _SQL_SCHEMES:
        return None
    return "must be a URL that begins with postgresql:// or sqlite:///"


def postgres_url(value: str) -> str | None:
    scheme, separator, _ = value.partition("://")
    if separator and scheme.partition("+")[0] in ("postgresql", "postgres"):
        return None
    return "must be a URL that begins with postgresql://"
