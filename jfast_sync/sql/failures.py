"""Drivers' errors become ours here: what is wrong, without the statement, its parameters or a password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from jfast_sync.errors import JFastError, SchemaError, UnavailableError
from jfast_sync.redact import error_text

__all__ = ["LockTimeout", "is_lost", "is_passing", "sqlstate", "translate", "translated"]

_READ_ONLY: Final = "25006"  # after a failover: the connection lives, but on a server that no longer takes writes
_STALE_PLAN: Final = "0A000"  # "cached plan must not change result type": stays until the connection is dropped
_PASSING: Final = frozenset({"40001", "40P01", "55P03", "57014", "25P03"})
_NO_SCHEMA: Final = frozenset({"42P01", "42703", "3F000"})
_SQLITE_BUSY: Final = ("locked", "busy")
_NO_RIGHT: Final = "42501"
_DENIED: Final = re.compile(r"permission denied for (table|relation|sequence|schema) (\S+)")
_GRANTS: Final = {"sequence": "USAGE ON SEQUENCE", "schema": "CREATE ON SCHEMA"}


class LockTimeout(UnavailableError):
    """Somebody else's open transaction holds what is needed, and did not end in the time allowed."""


def sqlstate(exc: BaseException) -> str | None:
    """Return PostgreSQL's five-character code for an error, None where there is none."""
    original = getattr(exc, "orig", None) or exc
    state = getattr(original, "sqlstate", None)
    return state if isinstance(state, str) else None


def is_lost(exc: DBAPIError) -> bool:
    """Say whether the connection is of no more use: cut, on a server gone read-only, or with a stale plan."""
    state = sqlstate(exc)
    stale = state == _STALE_PLAN and "cached plan" in str(exc.orig)
    return exc.connection_invalidated or stale or state == _READ_ONLY


def is_passing(exc: DBAPIError) -> bool:
    """Say whether the same transaction may well succeed when tried again: deadlock, lock or statement timeout."""
    return sqlstate(exc) in _PASSING


def translate(exc: Exception) -> Exception:
    """Return our exception for a driver's; what is neither ours nor a driver's comes back unchanged."""
    if isinstance(exc, JFastError):
        return exc
    if isinstance(exc, PoolTimeout):
        return UnavailableError("every database connection was in use for too long; raise [plugin.database] pool_size")
    if not isinstance(exc, DBAPIError):
        return exc
    text = error_text(exc.orig) if exc.orig is not None else error_text(exc)
    state = sqlstate(exc)
    if state == "55P03" or (state is None and _busy(exc)):
        return LockTimeout(f"the database is held by another transaction: {text}")
    if state == "40P01":
        return LockTimeout(
            f"another transaction and this one waited for each other; this one may be tried again: {text}"
        )
    if state in _NO_SCHEMA or "no such table" in text or "no such column" in text or "has no column" in text:
        return SchemaError(f'the database\'s tables are missing or old; run "jfast-sync db upgrade" ({text})')
    if state == _NO_RIGHT:
        return SchemaError(_missing_right(text))
    return UnavailableError(f"the database cannot serve now: {text}")


def _missing_right(text: str) -> str:
    denied = _DENIED.search(text)
    if denied is None:
        return f'the database\'s role may not do this; "jfast-sync db upgrade" is for the owner of the tables ({text})'
    kind, name = denied.groups()
    right = _GRANTS.get(kind, "SELECT, INSERT, UPDATE, DELETE ON")
    return f'the database\'s role lacks a right; as the owner run "GRANT {right} {name} TO" this role ({text})'


@contextmanager
def translated() -> Iterator[None]:
    """Raise our exceptions for a driver's inside the block, ``from`` the original."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as exc:
        raise translate(exc) from exc


def _busy(exc: DBAPIError) -> bool:
    return any(word in str(exc.orig) for word in _SQLITE_BUSY)
