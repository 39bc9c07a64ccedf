"""What the command's exit codes mean, and which error ends in which."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit", "exit_of"]


class Exit(IntEnum):
    """The exit codes; scripts may rely on them."""

    DONE = 0
    PROBLEMS = 1  # it looked and found something wrong, or refused what it was given
    CONFIGURATION = 2
    ENVIRONMENT = 3  # a server cannot be reached, or cannot serve now
    MIGRATION = 4
    CONTRACT = 5
    USAGE = 6
    INTERRUPTED = 130  # 128 + SIGINT
    BROKEN_PIPE = 141  # 128 + SIGPIPE


def exit_of(error: Exception) -> Exit:
    """Return the exit code an exception of the library ends in; every other exception is a problem."""
    # Imported here so that `--help` starts without the library.
    from jfast_sync.errors import ConfigError, SchemaError, UnavailableError

    match error:
        case ConfigError():
            return Exit.CONFIGURATION
        case UnavailableError():
            return Exit.ENVIRONMENT
        case SchemaError():
            return Exit.MIGRATION
        case _:
            return Exit.PROBLEMS
