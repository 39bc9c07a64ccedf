"""One named daemon thread that repeats a step, and a deadline made once and passed down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from jfast_sync.backoff import backoff
from jfast_sync.redact import error_text

__all__ = ["Deadline", "Loop"]

log = logging.getLogger(__name__)

_FAILURE_CAP: Final = 5.0


class Deadline:
    """An instant on the monotonic clock, made once from a number of seconds and passed down.

    Args:
        seconds: from now; None never ends.
    """

    __slots__ = ("_at",)

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def remaining(self, at_most: float = threading.TIMEOUT_MAX) -> float:
        """Return the seconds left, never negative and never above ``at_most``."""
        if self._at is None:
            return at_most
        return min(max(self._at - time.monotonic(), 0.0), at_most)

    @property
    def passed(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at


class Loop:
    """Run ``step`` again and again in one daemon thread; it returns the seconds to wait before the next.

    A step that raises an Exception is logged when it starts to fail and when it works again, and repeated with a
    growing pause: a loop never dies of a blip. Anything worse (a BaseException) ends the thread and calls ``on_death``.

    Args:
        name: the thread's name.
        step: one pass; returns seconds to wait, 0 for at once, None to end the loop.
        on_death: called in the dying thread with what killed it.
    """

    def __init__(
        self, name: str, step: Callable[[], float | None], on_death: Callable[[BaseException], None] | None = None
    ) -> None:
        self.name = name
        self._step = step
        self._on_death = on_death
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failures = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def wake(self) -> None:
        """End the present wait at once, or skip the next one; from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end after its present step; does not wait."""
        self._stopping.set()
        self._wake.set()

    def join(self, deadline: Deadline) -> bool:
        """Wait for the thread's end; return whether it ended in time."""
        if self._thread.ident is None:
            return True
        self._thread.join(deadline.remaining())
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pause = self._guarded()
                if pause is None:
                    return
                self._wake.wait(pause)
                self._wake.clear()
        except BaseException as exc:
            self.last_error = error_text(exc)
            log.critical("%s ended: %s", self.name, self.last_error)
            if self._on_death is not None:
                self._on_death(exc)

    def _guarded(self) -> float | None:
        try:
            pause = self._step()
        except Exception as exc:
            self._failures += 1
            text = error_text(exc)
            if text != self.last_error:
                log.warning("%s fails and goes on trying: %s", self.name, text)
            self.last_error = text
            return backoff(self._failures, base=0.1, cap=_FAILURE_CAP, jitter=0.5)
        if self._failures:
            log.info("%s works again after %d failures", self.name, self._failures)
        self._failures, self.last_error = 0, None
        return pause
