"""Callbacks for error trackers and metrics: they see what jobs do, they do not steer it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jfast_sync.job import Job
from jfast_sync.redact import error_text

__all__ = ["JobEvent", "Observer", "Observers"]

log = logging.getLogger(__name__)

Moment = Literal["start", "success", "failure", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """What an observer is told.

    ``error`` is the redacted text, ``exception`` the object where this process caught one; ``seconds`` is how long the
    handler ran (None at a start). A failure that ends as a dead letter is told twice: as failure, then as dead.
    """

    job: Job
    error: str | None = None
    exception: BaseException | None = None
    seconds: float | None = None


Observer = Callable[[JobEvent], None]


class Observers:
    """The registered callbacks, called in the order they were added, in the thread that runs the job."""

    def __init__(self) -> None:
        self._callbacks: dict[Moment, list[Observer]] = {"start": [], "success": [], "failure": [], "dead": []}

    def add(self, moment: Moment, callback: Observer) -> None:
        self._callbacks[moment].append(callback)

    def tell(self, moment: Moment, event: JobEvent) -> None:
        """Call every observer of ``moment``; one that raises is logged and does not keep the others from being told."""
        for callback in self._callbacks[moment]:
            try:
                callback(event)
            except BaseException as exc:  # sys.exit() too: it is the job's thread, and no observer's to end
                log.warning("on_%s observer %r raised: %s", moment, callback, error_text(exc))
