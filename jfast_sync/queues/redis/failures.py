"""Redis's errors become ours here, by type: what is wrong, without a password or a job's content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis import exceptions as driver
from redis.sentinel import MasterNotFoundError

from jfast_sync.errors import JFastError, SchemaError, UnavailableError
from jfast_sync.redact import error_text

__all__ = ["WrongType", "is_lost", "translate", "translated", "unwrapped"]

#: The connection is of no more use, and whether the server acted on what was sent is not known.
_LOST = (driver.ConnectionError, OSError)
#: What we say of an error, the first that fits; more special kinds first.
_SAID: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...]] = (
    (driver.OutOfMemoryError, "Redis is full and takes no new jobs; raise its maxmemory"),
    (driver.ReadOnlyError, "this Redis is a replica now and takes no writes"),
    (driver.BusyLoadingError, "Redis is loading its data and will answer soon"),
    ((driver.AuthenticationError, driver.AuthorizationError), "Redis refuses this login; look at [plugin.cache] url"),
    ((*_LOST, driver.TimeoutError), "Redis cannot be reached"),
    (driver.NoPermissionError, "Redis does not allow this user what a queue needs"),
    (driver.RedisError, "Redis cannot serve now"),
)
_IN_SCRIPT: Final = re.compile(r"Error running script .*-(OOM|READONLY) (.*)", re.DOTALL)


class WrongType(SchemaError):
    """One of the queue's keys holds something else."""


def is_lost(exc: BaseException) -> bool:
    """Say whether the reply was lost with its connection: the command may have run, and may be sent again at once.

    After a timeout too it may have run, but a server that does not answer is not asked twice in a row.
    """
    refused = (driver.AuthenticationError, driver.AuthorizationError, driver.BusyLoadingError, TimeoutError)
    return isinstance(exc, _LOST) and not isinstance(exc, (*refused, driver.MaxConnectionsError))


def unwrapped(exc: Exception) -> Exception:
    """Return what went wrong inside a script: before Redis 7 that is hidden in the text of a general error."""
    found = _IN_SCRIPT.match(str(exc)) if isinstance(exc, driver.ResponseError) else None
    if found is None:
        return exc
    kind = driver.OutOfMemoryError if found[1] == "OOM" else driver.ReadOnlyError
    return kind(found[2])


def translate(exc: Exception) -> Exception:
    """Return our exception for a driver's; what is neither ours nor a driver's comes back unchanged."""
    exc = unwrapped(exc)
    text = error_text(exc)
    match exc:
        case JFastError():
            return exc
        case MasterNotFoundError():
            return UnavailableError(f"Redis cannot be reached: the Sentinels say: {str(exc).partition(' : ')[0]}")
        case driver.ResponseError() if "WRONGTYPE" in str(exc):
            return WrongType(f"a key of the queue holds something else ({text})")
    for kinds, said in _SAID:
        if isinstance(exc, kinds):
            return UnavailableError(f"{said}: {text}")
    return exc


@contextmanager
def translated() -> Iterator[None]:
    """Raise our exceptions for a driver's inside the block, ``from`` the original."""
    try:
        yield
    except (driver.RedisError, OSError) as exc:
        raise translate(exc) from exc
