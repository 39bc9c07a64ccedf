"""Redis's errors become ours here, by type: what is wrong, without a password or a job's content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as driver

from jfast_sync.errors import JFastError, SchemaError, UnavailableError
from jfast_sync.redact import error_text

__all__ = ["WrongType", "is_lost", "translate", "translated"]

#: The connection is of no more use, and whether the server acted on what was sent is not known.
_LOST = (driver.ConnectionError, OSError)


class WrongType(SchemaError):
    """One of the queue's keys holds something else."""


def is_lost(exc: BaseException) -> bool:
    """Say whether the reply was lost with its connection: the command may have run, and may be sent again at once.

    After a timeout too it may have run, but a server that does not answer is not asked twice in a row.
    """
    refused = (driver.AuthenticationError, driver.AuthorizationError, driver.BusyLoadingError, TimeoutError)
    return isinstance(exc, _LOST) and not isinstance(exc, (*refused, driver.MaxConnectionsError))


def translate(exc: Exception) -> Exception:
    """Return our exception for a driver's; what is neither ours nor a driver's comes back unchanged."""
    text = error_text(exc)
    match exc:
        case JFastError():
            return exc
        case driver.OutOfMemoryError():
            return UnavailableError(f"Redis is full and takes no new jobs; raise its maxmemory ({text})")
        case driver.ReadOnlyError():
            return UnavailableError(f"this Redis is a replica now and takes no writes ({text})")
        case driver.BusyLoadingError():
            return UnavailableError(f"Redis is loading its data and will answer soon ({text})")
        case driver.AuthenticationError() | driver.AuthorizationError():
            return UnavailableError(f"Redis refuses this login; look at [plugin.cache] url ({text})")
        case driver.ConnectionError() | driver.TimeoutError() | OSError():
            return UnavailableError(f"Redis cannot be reached: {text}")
        case driver.NoPermissionError():
            return UnavailableError(f"Redis does not allow this user what a queue needs: {text}")
        case driver.ResponseError() if "WRONGTYPE" in str(exc):
            return WrongType(f"a key of the queue holds something else ({text})")
        case driver.RedisError():
            return UnavailableError(f"Redis cannot serve now: {text}")
        case _:
            return exc


@contextmanager
def translated() -> Iterator[None]:
    """Raise our exceptions for a driver's inside the block, ``from`` the original."""
    try:
        yield
    except (driver.RedisError, OSError) as exc:
        raise translate(exc) from exc
