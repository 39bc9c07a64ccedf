"""An app's outbox, its relay and its event bus: built from the configuration, and started once per process."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, Final

from jfast_sync.health import Health
from jfast_sync.loop import Deadline
from jfast_sync.ports import Queue, SharesTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from jfast_sync.config import Config
    from jfast_sync.core import JFast
    from jfast_sync.outbox.delivery import Delivery
    from jfast_sync.outbox.listening import Listening
    from jfast_sync.outbox.outbox import Outbox
    from jfast_sync.outbox.relay import Relay, RelayOptions
    from jfast_sync.outbox.table import OutboxTable
    from jfast_sync.ports import EventBus
    from jfast_sync.queues.sql_wake import TableBell
    from jfast_sync.sql.engine import Database

__all__ = ["Relaying", "bus", "delivery", "messages", "outbox"]

_IDLE: Final = 10.0  # seconds between looks where everything of ours goes straight into the queue
_ENDS: Final = 3.0  # seconds to wait for a relay's end


class Relaying:
    """The relay of one app: started once in a process that serves or works, and started anew after a fork.

    Args:
        app: whose relay.
    """

    def __init__(self, app: JFast) -> None:
        self._app = app
        self._listening: Listening | None = None
        self._elsewhere = _elsewhere(app)
        self._renew()
        if app.database is not None:
            app.database.after_fork.append(self._renew)

    def _renew(self) -> None:
        # In a forked child: the threads are the parent's, and its lock may have been held by one of them.
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        self._inherited, self._listening = self._listening, None  # its connection is neither used nor closed here

    def start(self) -> Relay | None:
        """Start the relay where the configuration has it on; None where it is off."""
        with self._lock:
            if self._relay is None and (relay := _relay(self._app)) is not None:
                relay.start()
                self._relay = relay  # not where it could not be started: that may be tried again
                self._listening = self._listen(relay)
                atexit.register(self.stop)
            return self._relay

    def wake(self) -> None:
        """Let a relay look at once: this process's, or where none runs here those of other processes."""
        if self._relay is not None:
            self._relay.wake()
        elif self._elsewhere is not None:
            self._elsewhere.ring()

    def _listen(self, relay: Relay) -> Listening | None:
        """Let commits in processes without a relay wake this one; None where nobody rings, or nothing would come."""
        if self._elsewhere is None or not self._elsewhere.heard or _straight(self._app):
            return None
        from jfast_sync.outbox.listening import Listening
        from jfast_sync.queues.sql_wake import Doorbell

        listening = Listening(self._elsewhere.listener(), Doorbell(), relay.wake)
        listening.start()
        return listening

    def coming(self) -> bool:
        """Say whether this process's relay will bring jobs to the queue that are due by now."""
        app = self._app
        return self._relay is not None and app.messages is not None and app.messages.jobs_due()

    def run_once(self) -> int:
        """Bring what is due to the queue and the bus, in this thread; return how many messages were sent."""
        relay = _relay(self._app, always=True)
        return 0 if relay is None else relay.run_once()

    def stop(self) -> None:
        """Stop the relay and wait for its end; idempotent."""
        with self._lock:
            relay, self._relay = self._relay, None
            listening, self._listening = self._listening, None
        atexit.unregister(self.stop)
        deadline = Deadline(_ENDS)
        for running in (listening, relay):
            if running is not None:
                running.stop()
        for running in (listening, relay):
            if running is not None:
                running.join(deadline)

    def health(self) -> Health:
        """Say how the app's outbox is."""
        from jfast_sync.outbox.health import outbox_health

        app = self._app
        if app.messages is None:
            return Health()
        app.set_up_tables()
        return outbox_health(
            app.messages.stats(),
            stale_after=app.config.outbox.stale_after_seconds,
            relay=self._relay.health() if self._relay is not None else None,
        )


def bus(config: Config) -> EventBus | None:  # noqa: ARG001 - the only kind, Kafka, is not built yet
    """Return the configured event bus; None where there is none."""
    return None


def messages(config: Config, primary: Database | None) -> OutboxTable | None:
    """Return the outbox's rows in the primary database; None where the plugin is off."""
    if primary is None or not config.has("outbox"):
        return None
    from jfast_sync.outbox.table import OutboxTable

    return OutboxTable(primary)


def outbox(app: JFast, *, has_queue: bool) -> Outbox:
    """Build what writes jobs and events through sessions."""
    from jfast_sync.outbox.outbox import Outbox

    if app.messages is not None and not _shares(app.queue.backend, app.database):
        from jfast_sync.outbox.waiting import WaitingJobs

        app.queue.waiting = WaitingJobs(app.messages)
    return Outbox(
        app.queue,
        app.tasks,
        app.messages,
        has_queue=has_queue,
        has_bus=app.bus is not None,
        max_bytes=app.config.queue.max_payload_bytes,
        wake=app.relaying.wake,
        ready=_first_use(app),
    )


def _first_use(app: JFast) -> Callable[[Session], None]:
    """Return what makes sure of the tables before a session of anybody's writes to them."""
    if app.database is None:
        return lambda _session: None
    from jfast_sync.sql.first_use import FirstUse

    return FirstUse(app.database, app.config.jobs_table, current_only=app.config.app.env == "prod")


def _relay(app: JFast, *, always: bool = False) -> Relay | None:
    """Build the relay of an app; None where there is no outbox, or the configuration has the relay off."""
    if app.messages is None or not (always or app.config.outbox.relay):
        return None
    from jfast_sync import inbox
    from jfast_sync.outbox.relay import Relay

    database, days = app.messages.database, app.config.outbox.inbox_retention_days
    return Relay(
        app.messages,
        delivery(app),
        _relay_options(app),
        setup=app.setup,
        upkeep=lambda: inbox.prune(database, days),
    )


def delivery(app: JFast) -> Delivery:
    """Return what sends the outbox's messages to the app's queue and bus."""
    from jfast_sync.outbox.delivery import Delivery

    return Delivery(app.queue.backend if app.outbox.has_queue else None, app.bus)


def _relay_options(app: JFast) -> RelayOptions:
    from jfast_sync.outbox.relay import RelayOptions

    options = app.config.outbox
    return RelayOptions(
        # Rows come from other services only.
        interval=max(options.interval_seconds, _IDLE) if _straight(app) else options.interval_seconds,
        batch_size=options.batch_size,
        max_attempts=options.max_attempts,
        retention_days=options.retention_days,
    )


def _elsewhere(app: JFast) -> TableBell | None:
    """Return what wakes the relays of other processes; None where there is no outbox."""
    if app.messages is None:
        return None
    from jfast_sync.queues.sql_wake import TableBell

    config = app.config
    listen_dsn = config.database.listen_dsn
    return TableBell(app.messages.database, "jfast_outbox", listen=config.queue.listen, listen_dsn=listen_dsn)


def _straight(app: JFast) -> bool:
    """Say whether everything of ours goes straight into the queue."""
    return app.bus is None and _shares(app.queue.backend, app.database)


def _shares(backend: Queue, primary: Database | None) -> bool:
    """Say whether what goes through a session of the primary database goes straight into the queue."""
    from sqlalchemy.orm import Session

    return primary is not None and isinstance(backend, SharesTransaction) and backend.shares(Session(primary.engine))
