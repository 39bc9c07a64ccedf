"""A test that measures time (marked `timed`) has the machine to itself: parallel test processes wait meanwhile.

Every test holds a lock that all may share; a run of timed ones holds it alone. Who waits for it alone holds the
turnstile that everybody passes first, so that a stream of other tests cannot keep it waiting.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest


class _Turn:
    """What this process holds of the lock."""

    def __init__(self) -> None:
        self._lock: IO[str] | None = None

    def take(self, *, alone: bool) -> None:
        if self._lock is not None:
            return  # the timed test before has left it
        first, second = _locks(os.getppid())
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with first.open("w") as turnstile:
            fcntl.flock(turnstile, how)
            self._lock = second.open("w")
            fcntl.flock(self._lock, how)

    def give_back(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


_turn = _Turn()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)  # nothing runs beside it
    _turn.take(alone=_timed(item))
    try:
        return (yield)
    finally:
        # Between two timed tests of one file nobody is let in: the second would have to wait for the others again.
        if not (_timed(item) and nextitem is not None and _timed(nextitem)):
            _turn.give_back()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the locks when the run is over: its first process does."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for path in _locks(os.getpid()):
            path.unlink(missing_ok=True)


def _timed(item: pytest.Item) -> bool:
    return item.get_closest_marker("timed") is not None


def _locks(run: int) -> tuple[Path, Path]:
    folder = Path(tempfile.gettempdir())
    return folder / f"jfast-sync-tests-{run}.turnstile", folder / f"jfast-sync-tests-{run}.lock"
