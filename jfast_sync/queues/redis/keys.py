"""The names of the queue's keys: all share one hash tag, so that a cluster keeps them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

__all__ = ["Keys", "Lane"]


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """Where ready and delayed jobs of one named queue and one priority wait, ordered by their due time."""

    priority: int
    queue: str

    @property
    def name(self) -> str:
        return f"{self.priority}:{self.queue}"

    @classmethod
    def of(cls, name: str) -> Self:
        """Read a lane's name; what is none becomes the ordinary lane."""
        priority, separator, queue = name.partition(":")
        try:
            return cls(int(priority), queue) if separator and queue else cls(0, "default")
        except ValueError:
            return cls(0, "default")


@dataclass(frozen=True, slots=True)
class Keys:
    """Names below ``prefix + {name}``.

    Args:
        prefix: put before every key.
        name: the queue's name; the hash tag.
    """

    prefix: str
    name: str

    def _key(self, part: str) -> str:
        return f"{self.prefix}{{{self.name}}}:{part}"

    @property
    def fixed(self) -> tuple[str, ...]:
        """What every script gets, in the order in which it unpacks them."""
        parts = ("jobs", "meta", "errors", "leases", "dead", "done", "kept", "lanes", "state", "wake")
        return tuple(self._key(part) for part in parts)

    @property
    def jobs(self) -> str:
        """HASH id -> record: a header line, then the job's wire form."""
        return self._key("jobs")

    @property
    def meta(self) -> str:
        """HASH id -> what changes during a job's life; no field for a job that was never claimed."""
        return self._key("meta")

    @property
    def errors(self) -> str:
        """HASH id -> the latest error, NUL, its traceback."""
        return self._key("errors")

    @property
    def leases(self) -> str:
        """ZSET of running ids by the end of their lease."""
        return self._key("leases")

    @property
    def dead(self) -> str:
        """ZSET of dead letters by the time of their death."""
        return self._key("dead")

    @property
    def done(self) -> str:
        """ZSET of finished ids that are kept, by their end."""
        return self._key("done")

    @property
    def kept(self) -> str:
        """HASH id -> what is kept of a finished job."""
        return self._key("kept")

    @property
    def lanes(self) -> str:
        """HASH of the names of all lanes, and their version."""
        return self._key("lanes")

    @property
    def state(self) -> str:
        """HASH: format, the server's run, until when recovery waits after a new run, the latest due time given."""
        return self._key("state")

    @property
    def wake(self) -> str:
        """LIST of tokens for claimers that may not know a new lane yet."""
        return self._key("wake")

    @property
    def counts(self) -> str:
        """HASH of the counters per task."""
        return self._key("counts")

    def answer(self, caller: str) -> str:
        """STRING: what the latest batch of one calling thread was answered, should the reply get lost."""
        return self._key(f"answer:{caller}")

    def ready(self, lane: Lane) -> str:
        """ZSET of a lane's ids by their due time in microseconds."""
        return self._key(f"ready:{lane.name}")

    def wake_queue(self, queue: str) -> str:
        """LIST of at most 64 tokens; each ends the wait of one claimer of this named queue."""
        return self._key(f"wake:{queue}")
