"""An app's scheduler: built from the configuration, and started once per process."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jfast_sync import adapters
from jfast_sync.health import Health

if TYPE_CHECKING:
    from jfast_sync.core import JFast
    from jfast_sync.scheduler import Scheduler

__all__ = ["Scheduling"]

log = logging.getLogger(__name__)

_NAMED: Final = 5
_FORGETS: Final = (
    'scheduler_store = "memory", but processes share the queue: each that schedules runs every schedule; '
    'use "database" or "cache"'
)
_SHOWN: Final = 100


class Scheduling:
    """The scheduler of one app: started once in a process that serves or works, and anew after a fork.

    Args:
        app: whose scheduler.
    """

    def __init__(self, app: JFast) -> None:
        self._app = app
        self._renew()

    def _renew(self) -> None:
        # In a forked child: the thread is the parent's, and its lock may have been held by one of its threads.
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._asked = False

    def start(self) -> Scheduler | None:
        """Start the scheduler where the configuration has it on; None where it is off, which is said once.

        Raises:
            ConfigError: the tick store cannot be used.
        """
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            if not self._asked:
                self._scheduler = _scheduler(self._app)
                if self._scheduler is not None:
                    self._app.tasks.on_schedule = self._wake
                    self._scheduler.start()
                    atexit.register(self.close)
                self._asked = True  # not where it failed: it may be asked again
            return self._scheduler

    def stop(self) -> None:
        """Ask it to end; does not wait."""
        if self._scheduler is not None and self._pid == os.getpid():
            self._scheduler.stop()

    def close(self) -> None:
        """Stop it, wait a moment, and let go of its store's connections; idempotent."""
        atexit.unregister(self.close)
        if self._scheduler is not None and self._pid == os.getpid():
            self._scheduler.close()

    def _wake(self) -> None:
        if self._scheduler is not None and self._pid == os.getpid():
            self._scheduler.wake()

    def health(self) -> Health:
        """Say how it is; well where none runs here, with the schedules that are declared."""
        if self._scheduler is not None:
            health = self._scheduler.health()
            status, detail = health.status, health.detail
            if self._app.config.forgets_ticks_of_others:
                status, detail = "degraded", "; ".join(filter(None, [_FORGETS, detail]))
            return Health(status=status, detail=detail, meta={"status": status, **health.meta})
        names = [schedule.name for schedule in self._app.tasks.schedules()[:_SHOWN]]
        meta: dict[str, Any] = {"status": "off", "schedules": names}
        return Health(meta=meta)


def _scheduler(app: JFast) -> Scheduler | None:
    if not app.config.queue.scheduler:
        _say_off(app)
        return None
    if app.config.forgets_ticks_of_others:
        log.warning(_FORGETS)
    from jfast_sync.scheduler import Scheduler

    return Scheduler(
        adapters.tick_store(app.config, app.database),
        app.queue.backend,
        app.tasks,
        prepare=app.queue.prepare,
        retention=timedelta(days=app.config.queue.scheduler_retention_days),
        setup=app.setup,
    )


def _say_off(app: JFast) -> None:
    declared = app.tasks.schedules()
    if not declared:
        return
    log.warning(
        "%d schedules are declared and do not run here: set [plugin.queue] scheduler = true in at least one process "
        "(%s%s)",
        len(declared),
        ", ".join(schedule.name for schedule in declared[:_NAMED]),
        ", ..." if len(declared) > _NAMED else "",
    )
