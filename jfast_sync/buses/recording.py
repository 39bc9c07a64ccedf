"""A bus that keeps what it is given, for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from jfast_sync.errors import UnavailableError
from jfast_sync.event import Event
from jfast_sync.ports import Publication

__all__ = ["RecordingBus"]


class RecordingBus:
    """Keeps every event in memory, in the order it was sent. Safe for any number of threads.

    ``refuse`` may be set to a text: then nothing is taken, and that is why. ``refused_keys`` are keys whose events are
    not taken.
    """

    bus = "recording"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: list[Publication] = []
        self.refuse: str | None = None
        self.refused_keys: set[str] = set()

    @property
    def sent(self) -> list[Publication]:
        """What was taken so far; a copy."""
        with self._lock:
            return list(self._sent)

    def events(self, topic: str) -> list[Event]:
        """Return the events of one topic, in order."""
        return [publication.event for publication in self.sent if publication.topic == topic]

    def send(self, publications: Sequence[Publication]) -> list[Exception | None]:
        if self.refuse is not None:
            raise UnavailableError(self.refuse)
        answers: list[Exception | None] = []
        with self._lock:
            for publication in publications:
                refused = publication.event.key in self.refused_keys
                answers.append(UnavailableError(f"key {publication.event.key} is refused") if refused else None)
                if not refused:
                    self._sent.append(publication)
        return answers

    def close(self) -> None:
        """Nothing is held open."""
