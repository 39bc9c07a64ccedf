"""What a handler may raise to say how its job goes on: :class:`Retry`, :class:`Cancel`, :class:`Snooze`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["Cancel", "Control", "Retry", "Snooze"]


_LONGEST: Final = timedelta(days=3660).total_seconds()


class Control(Exception):
    """Base of the three; raising one is not an error of the handler."""


class Retry(Control):
    """Fail this attempt and try again after ``delay`` instead of the usual backoff; spends an attempt.

    Args:
        reason: kept as the job's error.
        delay: seconds or a timedelta; None takes the usual backoff.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.delay = _seconds(delay)


class Cancel(Control):
    """Give the job up at once: it becomes a dead letter with ``reason``, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Snooze(Control):
    """Run the job again later without spending an attempt.

    A job may go on snoozing for the configured ``snooze_max_age`` (7 days by default), then it is a dead letter.

    Args:
        delay: seconds or a timedelta from now.
        until: an aware instant instead of ``delay``.
        reason: kept as the job's error.
    """

    def __init__(
        self, delay: float | timedelta | None = None, *, until: datetime | None = None, reason: str = ""
    ) -> None:
        super().__init__(reason)
        if (delay is None) == (until is None):
            raise ValueError("Snooze takes either delay or until")
        if until is not None and until.utcoffset() is None:
            raise ValueError(f"Snooze(until=...) must carry a time zone, got the naive {until!r}")
        self.delay = _seconds(delay)
        self.until = until.astimezone(UTC) if until is not None else None


def _seconds(delay: float | timedelta | None) -> float | None:
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds <= _LONGEST:
        raise ValueError(f"delay must be from 0 to {_LONGEST:,.0f} seconds (ten years), got {delay!r}")
    return seconds
