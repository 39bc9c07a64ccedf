"""How long to wait after attempt n."""

from __future__ import annotations

from collections.abc import Callable
from random import random

__all__ = ["backoff"]

_MAX_EXPONENT = 62  # 2**62 seconds is past every cap; a larger exponent would overflow a float on its way to min()


def backoff(
    attempt: int, *, base: float = 2.0, cap: float = 300.0, jitter: float = 0.0, rand: Callable[[], float] = random
) -> float:
    """Return the seconds to wait after attempt ``attempt``: ``min(base * 2**(attempt-1), cap)``.

    Args:
        attempt: the attempt that failed, from 1.
        base, cap: seconds.
        jitter: 0 to 1; the share of the delay that is taken off at random, so that a crowd spreads out.
        rand: a source of numbers in [0, 1).
    """
    exponent = min(max(attempt - 1, 0), _MAX_EXPONENT)
    delay = min(base * 2.0**exponent, cap)
    return delay * (1.0 - jitter * rand()) if jitter else delay
