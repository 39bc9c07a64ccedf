"""``/ready``: the checks' answers, and what they amount to.

:func:`evaluate` is pure. :class:`Readiness` asks the checks side by side, so that one server that accepts connections
and never replies neither delays the answer nor collects threads.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from jfast_sync.health import Check, Health
from jfast_sync.redact import error_text, redact
from jfast_sync.web.answers import Answer
from jfast_sync.web.flights import NO_THREADS, Flights, NoAnswer, threads_run

__all__ = ["CHECK_SECONDS", "Readiness", "evaluate"]

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 2.0
_SILENT: Final = "no answer within"
_UNSAID: Final = "the reason is in the log of this service"

# How `error_text` writes an exception: a type's name, a colon, the text. What follows the name may say anything.
_ERROR: Final = re.compile(r"\b([A-Z]\w*|\w*error): .*", re.DOTALL)
_URL: Final = re.compile(r"\S+://\S*")


def evaluate(results: Mapping[str, Health], *, service: str, prod: bool = False) -> tuple[dict[str, Any], int]:
    """Say what the checks' answers amount to: the body of ``/ready`` and its HTTP status.

    503 only where a critical check is unavailable; anything else that is not well is "degraded", with 200, because
    taking the service out of rotation would not help it.

    Args:
        results: each check's answer by name.
        service: the service's name.
        prod: show the types of errors without their texts.
    """
    down = any(health.critical and health.status == "unavailable" for health in results.values())
    well = all(health.healthy for health in results.values())
    body = {
        "status": "unavailable" if down else "ok" if well else "degraded",
        "service": service,
        "checks": {
            name: {
                "healthy": health.healthy,
                "status": health.status,
                "detail": _detail(health, prod),
                "critical": health.critical,
                "meta": _shown(health.meta, prod),
            }
            for name, health in results.items()
        },
    }
    return body, 503 if down else 200


def _detail(health: Health, prod: bool) -> str:
    if not prod or health.status != "unavailable" or health.detail.startswith(_SILENT):
        return _text(health.detail, prod)
    # Whatever a check says of a failure came from a server or a driver; only the kind of failure is shown.
    kind = _ERROR.search(health.detail)
    return kind[1] if kind is not None else _UNSAID


def _text(text: str, prod: bool) -> str:
    text = redact(text)
    return _URL.sub("***", _ERROR.sub(r"\1", text)) if prod else text


def _shown(value: Any, prod: bool) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _shown(item, prod) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_shown(item, prod) for item in value]
        case BaseException():
            return _text(error_text(value), prod)
        case _:
            return _text(str(value), prod)


class Readiness:
    """Ask an app's checks and say what they amount to; from any thread.

    Args:
        checks: returns the checks by name, anew for every question: workers come and go.
        service: the service's name.
        prod: show the types of errors without their texts; the texts are logged.
        timeout: seconds a check has; one that does not answer in time is unavailable.
    """

    def __init__(
        self,
        checks: Callable[[], Mapping[str, Check]],
        *,
        service: str,
        prod: bool = False,
        timeout: float = CHECK_SECONDS,
    ) -> None:
        self._checks = checks
        self._service = service
        self._prod = prod
        self._flights: Flights[Health] = Flights(timeout)
        self._said: dict[str, str] = {}

    def results(self) -> dict[str, Health]:
        """Return every check's answer within ``timeout`` seconds."""
        checks = self._checks()
        answers = self._flights.ask(checks)
        silent = f"{_SILENT} {self._flights.timeout:g} s"
        results = {name: _health(answers[name], check.critical, silent) for name, check in checks.items()}
        if not threads_run():
            results["threads"] = Health(status="degraded", detail=NO_THREADS)
        for name, health in results.items():
            self._log_change(name, health)
        return results

    def answer(self) -> Answer:
        """Return the answer to ``GET /ready``."""
        body, status = evaluate(self.results(), service=self._service, prod=self._prod)
        return Answer(status, body)

    def _log_change(self, name: str, health: Health) -> None:
        """Log a check when it stops or starts to be well, with the text that prod does not show."""
        before, self._said[name] = self._said.get(name, "ok"), health.status
        if before != health.status:
            level = logging.INFO if health.healthy else logging.WARNING
            log.log(level, "readiness: %s is %s: %s", name, health.status, redact(health.detail) or "no details")


def _health(answer: Health | Exception, critical: bool, silent: str) -> Health:
    match answer:
        case Health():
            return replace(answer, critical=critical or answer.critical)
        case NoAnswer():
            return Health(status="unavailable", detail=silent, critical=critical)
        case _:
            return Health(status="unavailable", detail=error_text(answer), critical=critical)
