"""What everything of one queue is called in the broker."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

__all__ = ["BANDS", "DEFAULT_QUEUE", "Names", "WorkQueue", "band_of"]

#: The bands of priority, highest first: above, at and below zero.
BANDS: Final = ("high", "normal", "low")
DEFAULT_QUEUE: Final = "default"
_LONGEST_WORD: Final = 80  # of a queue's name inside a routing key, whose limit is 255 bytes with the bits
_UNSAFE: Final = re.compile(r"[.*#~]")


@dataclass(frozen=True, slots=True, order=True)
class WorkQueue:
    """One AMQP queue that workers consume: a named queue's jobs of one band."""

    band: int
    queue: str

    @property
    def band_name(self) -> str:
        return BANDS[self.band]


@dataclass(frozen=True, slots=True)
class Names:
    """The names under one prefix, ``jfast.jobs`` for ``name = "jfast_jobs"``."""

    prefix: str

    @classmethod
    def of(cls, name: str) -> Names:
        """Return the names for the configured ``[plugin.queue] name``."""
        return cls(name.replace("_", "."))

    @property
    def main(self) -> str:
        """The exchange where delayed messages arrive when their time has come."""
        return self.prefix

    @property
    def dead(self) -> str:
        return f"{self.prefix}.dead"

    @property
    def lost(self) -> str:
        """The exchange and queue for what cannot be routed."""
        return f"{self.prefix}.lost"

    @property
    def directory(self) -> str:
        """The stream that tells the names of the named queues to workers that take them all."""
        return f"{self.prefix}.queues"

    def level(self, number: int) -> str:
        """The exchange and queue of one level of the cascade."""
        return f"{self.prefix}.delay.{number}"

    def work(self, work: WorkQueue) -> str:
        """The AMQP queue of a named queue's band; ``default`` at priority 0 has the prefix itself."""
        base = self.prefix if work.queue == DEFAULT_QUEUE else f"{self.prefix}.queue.{word(work.queue)}"
        return base if work.band_name == "normal" else f"{base}.{work.band_name}"

    def destination(self, work: WorkQueue) -> str:
        """The end of a routing key that leads to a band of a queue."""
        return f"{word(work.queue)}.{work.band_name}"

    def arrival(self, work: WorkQueue) -> str:
        """The pattern that leads from the main exchange to a band of a queue."""
        return f"#.{self.destination(work)}"


def band_of(priority: int) -> int:
    """Return the band of a priority: 0 above zero, 1 at zero, 2 below."""
    return 1 - (priority > 0) + (priority < 0)


def word(queue: str) -> str:
    """Return a queue's name as one word of a routing key: dots and wildcards escaped, long names hashed."""
    text = _UNSAFE.sub(lambda match: f"%{ord(match.group()):02X}", quote(queue, safe=""))
    if len(text) <= _LONGEST_WORD:
        return text
    return f"{text[:40]}~{hashlib.sha256(queue.encode()).hexdigest()[:32]}"
