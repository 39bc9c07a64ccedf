"""Delays in the broker, as arithmetic: a delay becomes ticks, ticks become bits, bits become a routing key.

Level n is a queue that keeps a message for 2^n ticks. A message visits the level of every bit that is set in its delay,
the highest first; each level's exchange leads straight to the level of the next bit that is set, or to the work queues
when none is. Nothing here talks to a broker. (The idea of binary delay levels is NServiceBus's; the bindings that jump
over levels whose bit is not set are ours, and save the broker most of the work.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT", "Cascade", "Jump"]


@dataclass(frozen=True, slots=True)
class Jump:
    """One binding: exchange of level ``source``, a pattern, and the level whose queue it leads to.

    ``target`` None leads to the work queues: no bit is left.
    """

    source: int
    pattern: str
    target: int | None


@dataclass(frozen=True, slots=True)
class Cascade:
    """The levels and their unit. Both are frozen in a broker's queues: to change them is to rename them.

    Args:
        levels: how many bits a delay has.
        tick_ms: milliseconds that the lowest level keeps a message.
    """

    levels: int = 25
    tick_ms: int = 100

    @property
    def longest(self) -> int:
        """The most ticks one journey through the levels can take."""
        return (1 << self.levels) - 1

    def ticks(self, delay_ms: float) -> int:
        """Return a delay in ticks, rounded up so that nothing is early, and at most what one journey can take."""
        return min(max(math.ceil(delay_ms / self.tick_ms), 0), self.longest)

    def is_too_long(self, delay_ms: float) -> bool:
        """Say whether a delay needs more than one journey; then the message has to carry its due time."""
        return delay_ms > self.longest * self.tick_ms

    def ttl_ms(self, level: int) -> int:
        """Return how long a level keeps a message, in milliseconds."""
        return self.tick_ms << level

    def key(self, ticks: int, destination: str) -> str:
        """Return the routing key of a delay: its bits, highest first, then where the message goes at last."""
        if not 0 <= ticks <= self.longest:
            raise ValueError(f"ticks must be from 0 to {self.longest}, got {ticks}")
        return ".".join([*format(ticks, f"0{self.levels}b"), destination])

    def delay_of(self, key: str) -> int:
        """Return the ticks that a routing key stands for; the inverse of :meth:`key`."""
        return int("".join(key.split(".")[: self.levels]), 2)

    def hops(self, ticks: int) -> list[int]:
        """Return the levels a message visits, in order."""
        return [level for level in reversed(range(self.levels)) if ticks >> level & 1]

    def jumps(self) -> Iterator[Jump]:
        """Give every binding; exchange n has spent the bits above n, and jumps to the next one that is set."""
        for source in reversed(range(self.levels)):
            spent = ["*"] * (self.levels - 1 - source)
            for target in reversed(range(source + 1)):
                yield Jump(source, ".".join([*spent, *["0"] * (source - target), "1", "#"]), target)
            yield Jump(source, ".".join([*spent, *["0"] * (source + 1), "#"]), None)


DEFAULT: Final = Cascade()
