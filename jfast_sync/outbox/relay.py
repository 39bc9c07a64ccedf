"""The relay: brings the outbox's committed messages to the queue and the bus, in every process that serves or works.

Lease in a short transaction, send outside of any, mark in another. Killed between sending and marking, the message is
sent again under the same id.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from jfast_sync.backoff import backoff
from jfast_sync.errors import UnavailableError
from jfast_sync.health import Health
from jfast_sync.loop import Deadline, Loop
from jfast_sync.outbox.delivery import Delivery, Result
from jfast_sync.outbox.outages import Outages
from jfast_sync.outbox.rows import Failure
from jfast_sync.outbox.table import Leased, OutboxTable
from jfast_sync.redact import error_text

__all__ = ["Relay", "RelayOptions"]

log = logging.getLogger("jfast_sync.outbox")

Judged = tuple[Failure, bool, float]  # whether it is dead now; seconds until the next attempt

_LEASE: Final = 60.0  # seconds; a relay that dies keeps its messages this long
_SENDING: Final = 25.0  # seconds after which a batch is not sent any further
_MARKING: Final = 20.0  # seconds to get the marks written while the database is away
_SWEEP_EVERY: Final = 5.0
_PRUNE_EVERY: Final = 600.0
_SLOW: Final = 1.0  # seconds of sending after which the spare thread goes on with what else is due
_RETRY_CAP: Final = 300.0
_BUSY: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """How a relay works: seconds between looks, messages per look, attempts before one is dead, days they are kept."""

    interval: float = 1.0
    batch_size: int = 100
    max_attempts: int = 20
    retention_days: float = 7.0


class Relay:
    """Sends what is due, again and again, in a thread of its own.

    Args:
        table: the messages.
        delivery: where they go.
        options: intervals and bounds.
        setup: called until it succeeds, before the first look; makes sure that the tables exist.
        upkeep: called now and then, for what else ages in the same database.
    """

    def __init__(
        self,
        table: OutboxTable,
        delivery: Delivery,
        options: RelayOptions,
        *,
        setup: Callable[[], None] = lambda: None,
        upkeep: Callable[[], object] = lambda: None,
    ) -> None:
        self._table = table
        self._delivery = delivery
        self._options = options
        self._setup = setup
        self._upkeep = upkeep
        self._is_set_up = False
        self._sending_since: float | None = None
        self._backlog = False  # the latest look met as many messages as it may
        self._outages = Outages()
        self._refusals = 0  # passes in a row that found a server away
        self._sweep_at = 0.0
        self._prune_at = time.monotonic() + random.uniform(0.0, _PRUNE_EVERY)  # noqa: S311 - only spreads the load
        self._loop = Loop("jfast-relay", self._step)
        self._spare = Loop("jfast-relay-spare", self._help_out)

    # --- what an app calls -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; once."""
        self._loop.start()
        self._spare.start()

    def wake(self) -> None:
        """Look at once: something was committed. From any thread."""
        self._loop.wake()

    def stop(self) -> None:
        """Ask the relay to end; what it holds and has not sent is released. Does not wait."""
        self._loop.stop()
        self._spare.stop()

    def join(self, deadline: Deadline) -> bool:
        """Wait for the threads' end; return whether they ended in time."""
        ended = self._loop.join(deadline)
        return self._spare.join(deadline) and ended

    def health(self) -> Health:
        """Say whether the relay runs, and what keeps it from its work."""
        if not self._loop.alive:
            return Health(status="degraded", detail="the relay does not run")
        if self._loop.last_error is not None:
            return Health(status="degraded", detail=f"the relay fails: {self._loop.last_error}")
        return Health()

    def run_once(self) -> int:
        """Lease, send and mark one batch in this thread; return how many messages were sent."""
        return self._pass(lambda: False)[0]

    # --- the loops -------------------------------------------------------------------------------------------

    def _step(self) -> float:
        if not self._is_set_up:
            self._setup()
            self._is_set_up = True
        self._keep_up()
        self._sending_since = time.monotonic()
        try:
            return self._pass(lambda: self._loop.stopping)[1]
        finally:
            self._sending_since = None

    def _help_out(self) -> float:
        """Go on with what is due while a send hangs, or while there is a backlog: one sends as the other leases."""
        since = self._sending_since
        hangs = since is not None and time.monotonic() - since >= _SLOW
        if not hangs and not self._backlog:
            return _SLOW
        return min(self._pass(lambda: self._spare.stopping)[1], _SLOW)

    def _keep_up(self) -> None:
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_EVERY
            self._table.sweep()
        if now >= self._prune_at:
            self._prune_at = now + _PRUNE_EVERY
            self._table.prune(self._options.retention_days * 86_400)
            self._upkeep()

    def _pass(self, stopping: Callable[[], bool]) -> tuple[int, float]:
        """Send one batch; return how many were sent and the seconds to wait before the next."""
        leased = self._table.lease(self._options.batch_size, _LEASE)
        self._backlog = len(leased.messages) >= self._options.batch_size
        if self._backlog:
            self._spare.wake()
        if not leased.messages:
            return 0, self._idle(leased)
        enough = Deadline(_SENDING)
        result = self._delivery.send(leased.messages, stop=lambda: enough.passed or stopping())
        failed = [self._judged(failure) for failure in result.failed]
        self._mark(leased, result, failed, stopping)
        for told in _causes(failed):
            _tell(told)
        for kind, errors in self._outages.ended(result).items():
            self._table.hasten(kind, errors)
        if not result.away:
            self._refusals = 0
            return len(result.sent), 0.0
        self._backlog = False
        self._refusals += 1
        return len(result.sent), backoff(self._refusals, base=0.05, cap=max(self._options.interval, 0.05), jitter=0.5)

    def _idle(self, leased: Leased) -> float:
        if leased.held:
            return 0.0
        if leased.looked_at:  # others are at what is due right now
            return _BUSY
        interval = self._options.interval * random.uniform(0.9, 1.1)  # noqa: S311 - only spreads the load
        return interval if leased.pause is None else min(interval, leased.pause)

    def _judged(self, failure: Failure) -> Judged:
        attempt = failure.message.attempts + 1
        dead = failure.final or attempt >= self._options.max_attempts
        return failure, dead, min(2.0 ** min(attempt, 30), _RETRY_CAP)

    def _mark(
        self,
        leased: Leased,
        result: Result,
        failed: Sequence[Judged],
        stopping: Callable[[], bool],
    ) -> None:
        """Write what became of a batch; go on trying for a while, or all of it is sent once more."""
        patience = Deadline(_MARKING)
        for attempt in range(1, 1000):
            try:
                self._table.mark(
                    leased.token,
                    sent=result.sent,
                    failed=failed,
                    unsent=result.unsent,
                    release=self._options.batch_size,
                )
                return
            except UnavailableError as exc:
                if patience.passed or stopping():
                    log.warning(
                        "%d messages were sent and could not be marked, they will be sent again under the same ids: %s",
                        len(result.sent),
                        error_text(exc),
                    )
                    raise
                time.sleep(backoff(attempt, base=0.05, cap=1.0))


def _causes(failed: Sequence[Judged]) -> list[list[Judged]]:
    """Return what failed, by what is said of it: in an outage thousands of messages have one cause."""
    causes: dict[tuple[str, bool, str], list[Judged]] = {}
    for failure, dead, delay in failed:
        causes.setdefault((failure.message.kind, dead, failure.error), []).append((failure, dead, delay))
    return list(causes.values())


def _tell(cause: Sequence[Judged]) -> None:
    (failure, dead, _), number = cause[0], len(cause)
    message, last = failure.message, max(delay for _, _, delay in cause)
    told = f"outbox {message.kind} {message.id} to {message.destination!r} not sent in attempt {message.attempts + 1}"
    if number > 1:
        told = f"{number} outbox messages not sent, among them {told.removeprefix('outbox ').replace(' not sent', '')}"
    if dead:
        are = "is" if number == 1 else "they are"
        log.error("%s and %s dead now, see jfast-sync outbox dead: %s", told, are, failure.error)
    else:
        soon = min(delay for _, _, delay in cause)
        again = f"{soon:g} s" if soon == last else f"{soon:g} to {last:g} s"
        log.warning("%s, again in %s: %s", told, again, failure.error)
