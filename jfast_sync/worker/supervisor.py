"""``--processes N``: N worker processes, each restarted when it dies.

The supervisor holds no thread and no connection. Its children live in sessions of their own, so that a terminal's
Ctrl-C reaches them once, through it; and they hold the reading end of a pipe that closes when it dies, at which they
drain.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from jfast_sync.backoff import backoff
from jfast_sync.loop import Deadline
from jfast_sync.worker.child import death
from jfast_sync.worker.signals import on_stop_signal

__all__ = ["LIFELINE", "Supervisor", "follow_supervisor"]

log = logging.getLogger("jfast_sync.worker")

#: The environment variable that tells a child which file descriptor its supervisor's death closes.
LIFELINE: Final = "JFAST_SUPERVISOR_FD"

_LOOK_EVERY: Final = 0.2
_HOPELESS: Final = frozenset({2, 4, 6})  # configuration, migration, usage: the next child would say the same
_SETTLED: Final = 60.0  # a child that lived for longer starts over with the shortest pause
_AFTER_GRACE, _HURRY = 6.0, 4.0


@dataclass(slots=True)
class _Place:
    """One of the N."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    restart_at: float | None = field(default=0.0)  # None: it is not started again


class Supervisor:
    """Keeps ``processes`` copies of a command running.

    Args:
        command: what each child runs: one worker of one process.
        processes: how many.
        grace: seconds a stopping child may take; a few more and it is killed.
    """

    def __init__(self, command: Sequence[str], processes: int, *, grace: float) -> None:
        self._command = list(command)
        self._grace = grace
        self._places = [_Place(number + 1) for number in range(processes)]
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._stops = 0
        self._forwarded = 0
        self._kill = Deadline(None)
        self._code = 0

    def run(self) -> int:
        """Run until all children have ended for good; the first stop signal drains them, a second ends their wait.

        Returns:
            0; the exit code of a child that could not start as configured; or 1 where one failed or had to be killed.
        """
        reading, writing = os.pipe()
        try:
            with on_stop_signal(self.stop):
                while any(place.process or place.restart_at is not None for place in self._places):
                    self._step(reading)
                    with suppress(Empty):
                        self._bell.get(timeout=_LOOK_EVERY)
        finally:
            os.close(writing)
            os.close(reading)
        return self._code

    def stop(self) -> None:
        """Ask all children to stop; a second call ends their grace. Safe in a signal handler."""
        self._stops += 1
        self._bell.put(None)

    def pids(self) -> list[int]:
        """The process ids of the children that run now."""
        return [place.process.pid for place in self._places if place.process is not None]

    def _step(self, lifeline: int) -> None:
        for place in self._places:
            if place.process is not None and (code := place.process.poll()) is not None:
                self._ended(place, code)
            if self._stops:
                place.restart_at = None
            elif place.process is None and place.restart_at is not None and time.monotonic() >= place.restart_at:
                self._start(place, lifeline)
        if self._stops > self._forwarded:
            self._forward()
        if self._kill.passed:
            self._kill_all()

    def _start(self, place: _Place, lifeline: int) -> None:
        environment = {**os.environ, LIFELINE: str(lifeline)}
        place.process = subprocess.Popen(  # noqa: S603 - the command is the caller's own
            self._command,
            env=environment,
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        place.started, place.restart_at = time.monotonic(), None
        log.info("worker process %d runs as %d", place.number, place.process.pid)

    def _ended(self, place: _Place, code: int) -> None:
        pid = place.process.pid if place.process is not None else 0
        place.process = None
        if code == 0:
            return
        if self._stops:
            if code != -signal.SIGTERM:  # told before it could listen: it had nothing to lose
                self._code = self._code or 1
            return
        if code in _HOPELESS:
            log.error("worker process %d (%d) cannot run: exit status %d", place.number, pid, code)
            self._code = code
            self.stop()
            return
        lived = time.monotonic() - place.started
        place.failures = 1 if lived > _SETTLED else place.failures + 1
        pause = backoff(place.failures, base=0.5, cap=30.0)
        place.restart_at = time.monotonic() + pause
        log.error("worker process %d (%d) ended: %s; another starts in %g s", place.number, pid, death(code), pause)

    def _forward(self) -> None:
        self._forwarded = self._stops
        self._kill = Deadline(_HURRY if self._stops > 1 else self._grace + _AFTER_GRACE)
        for place in self._places:
            if place.process is not None:
                place.process.terminate()

    def _kill_all(self) -> None:
        self._kill = Deadline(None)
        for place in self._places:
            if place.process is not None:
                log.error("worker process %d (%d) did not end; it is killed", place.number, place.process.pid)
                place.process.kill()


def follow_supervisor(stop: Callable[[], None]) -> None:
    """In a child: have ``stop`` called when the supervisor dies. Does nothing in a process that has none."""
    number = os.environ.pop(LIFELINE, None)  # a process that a handler starts is not the supervisor's child
    if number is None:
        return

    def wait() -> None:
        with suppress(OSError):
            while os.read(int(number), 1):
                pass
        log.error("the supervisor is gone; this worker drains")
        stop()

    threading.Thread(target=wait, name="jfast-lifeline", daemon=True).start()
