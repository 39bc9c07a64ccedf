"""Waiting for observable state with a deadline: the only way a test waits for something to happen elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    probe: Callable[[], T],
    timeout: float = 10.0,
    *,
    until: Callable[[T], bool] = bool,
    what: str = "the expected state",
    interval: float = 0.01,
) -> T:
    """Call `probe` until its value satisfies `until`, and return that value.

    `timeout` and `interval` are seconds. An exception raised by `probe` is not swallowed: it fails the test at once.
    Raises AssertionError naming `what` and the last value once the deadline has passed. The probe always runs at least
    once, and once more after the deadline, so a machine that was busy for longer than `timeout` is not a failure.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        value = probe()
        if until(value):
            return value
        if late:
            raise AssertionError(f"waited {timeout:g} s for {what}; last value: {value!r}")
        time.sleep(interval)  # the pause between two looks at the state, never the synchronisation itself
