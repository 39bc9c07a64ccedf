"""Every exception this library raises on purpose.

::

    JFastError
    ├── ConfigError              the configuration is wrong; nothing was started
    │   ├── DeclarationError     a task, subscriber or schedule is declared wrongly
    │   │   └── ScheduleError    (also a ValueError) a cron expression, zone or interval is refused
    │   └── MissingDriverError   a backend's driver is not installed
    ├── UnavailableError         a server cannot be reached, or answered that it cannot serve now
    ├── SchemaError              the database's tables are missing, older or newer than this library
    ├── PayloadError             (also a ValueError) a job or event cannot be stored as it is
    ├── LeaseLostError           this worker no longer holds the job; its writes are rolled back
    ├── NotInJobError            current_job() was asked outside a handler
    ├── NotProvidedError         (also a LookupError) require() of something the app does not have
    ├── UnknownTaskError         (also a LookupError) a task name nobody declared
    ├── UnsupportedError         the chosen backend cannot do this, said by name
    └── UndeliverableEvent       an event that nobody would ever receive

Each message says what is wrong, where, and what to do instead. None carries a password: texts
that come from drivers pass :func:`jfast_sync.redact.redact` first.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DeclarationError",
    "JFastError",
    "LeaseLostError",
    "MissingDriverError",
    "NotInJobError",
    "NotProvidedError",
    "PayloadError",
    "ScheduleError",
    "SchemaError",
    "UnavailableError",
    "UndeliverableEvent",
    "UnknownTaskError",
    "UnsupportedError",
]


class JFastError(Exception):
    """Base of every exception this library raises on purpose."""


class ConfigError(JFastError):
    """The configuration is wrong; the message names the place and the fix (exit code 2)."""


class DeclarationError(ConfigError):
    """A task, subscriber or schedule is declared in a way that cannot work."""


class ScheduleError(DeclarationError, ValueError):
    """A cron expression, time zone or interval is refused; the message says what to write instead."""


class MissingDriverError(ConfigError):
    """A backend's driver is not installed; the message names the extra to install."""


class UnavailableError(JFastError):
    """A server cannot be reached, or says that it cannot serve now; trying again may help (exit 3)."""


class SchemaError(JFastError):
    """The database's tables are missing, older or newer than this library knows (exit code 4)."""


class PayloadError(JFastError, ValueError):
    """A payload cannot be stored, and nothing was; the message names the path inside it."""


class LeaseLostError(JFastError):
    """The lease's token is no longer current: another worker has the job, nothing was committed."""


class NotInJobError(JFastError, RuntimeError):
    """``current_job()`` was called where no job is running."""


class NotProvidedError(JFastError, LookupError):
    """``require(name)`` found nothing under that name; the message names the line to add."""


class UnknownTaskError(JFastError, LookupError):
    """A task name nobody declared in this process; the message names the known ones."""


class UnsupportedError(JFastError):
    """The chosen backend cannot do this; the message says which can, or how to get there."""


class UndeliverableEvent(JFastError):
    """An event that no subscriber and no bus would ever receive; nothing was written."""
