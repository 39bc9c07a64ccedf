"""The answers to ``GET /ready`` and ``GET /queue/stats`` of one app, whoever sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jfast_sync.context import current_request_id
from jfast_sync.errors import JFastError, UnavailableError
from jfast_sync.ports import Stats
from jfast_sync.redact import error_text, redact
from jfast_sync.web.answers import Answer
from jfast_sync.web.flights import Flights, NoAnswer
from jfast_sync.web.problems import problem, problem_of
from jfast_sync.web.readiness import Readiness

if TYPE_CHECKING:
    from jfast_sync.core import JFast

__all__ = ["READY", "STATS", "Endpoints"]

READY: Final = "/ready"
STATS: Final = "/queue/stats"
_STATS_SECONDS: Final = 5.0


class Endpoints:
    """What one app answers about itself; from any thread.

    Args:
        core: the app.
    """

    def __init__(self, core: JFast) -> None:
        self._core = core
        self._prod = core.config.app.env == "prod"
        self._readiness = Readiness(core.checks, service=core.config.app.name, prod=self._prod)
        self._flights: Flights[Stats] = Flights(_STATS_SECONDS)

    @property
    def routes(self) -> Mapping[str, Callable[[str], Answer]]:
        """The paths, without any prefix, and what answers them."""
        return {READY: lambda _path: self.ready(), STATS: self.stats}

    def ready(self) -> Answer:
        """Say how the app is, within 3 seconds, whatever its servers do."""
        return self._readiness.answer()

    def stats(self, instance: str = STATS) -> Answer:
        """Count jobs by state; 404 where the depths are not for everybody.

        Args:
            instance: the path of the request, for a problem's ``instance``.
        """
        if not self._core.config.exposes_stats:
            closed = "No such resource. (In prod the depths are served with [plugin.queue] expose_stats = true.)"
            return problem(404, closed, instance=instance, request_id=current_request_id())
        match self._flights.ask({"stats": self._core.queue.stats})["stats"]:
            case Stats() as stats:
                return Answer(200, self._depths(stats))
            case NoAnswer():
                return self._failed(UnavailableError(f"the queue gave no answer within {_STATS_SECONDS:g} s"), instance)
            case JFastError() as error:
                return self._failed(error, instance)
            case Exception() as error:
                return self._failed(JFastError(error_text(error)), instance)

    def _depths(self, stats: Stats) -> dict[str, Any]:
        return {
            "backend": self._core.queue.backend.backend,
            "tasks": self._core.tasks.names(),
            "depths": {
                "ready": stats.ready,
                "delayed": stats.delayed,
                "running": stats.running,
                "dead": stats.dead,
            },
            "oldest_ready_seconds": stats.oldest_ready,
            "done": dict(stats.done_by_task),
            "failed": dict(stats.failed_by_task),
            "warnings": [redact(text) for text in stats.warnings],
        }

    def _failed(self, error: JFastError, instance: str) -> Answer:
        return problem_of(error, prod=self._prod, instance=instance, request_id=current_request_id())
