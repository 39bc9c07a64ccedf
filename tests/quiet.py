"""A test that measures time (marked `timed`) has the machine to itself: parallel test processes wait meanwhile.

Every test holds a lock that all may share, and a timed one the same lock alone. Who waits for it alone holds the
turnstile that everybody passes first, so that a stream of other tests cannot keep it waiting.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)  # nothing runs beside it
    with _turn(alone=item.get_closest_marker("timed") is not None):
        return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the locks when the run is over: its first process does."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for path in _locks(os.getpid()):
            path.unlink(missing_ok=True)


@contextmanager
def _turn(*, alone: bool) -> Iterator[None]:
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    first, second = _locks(os.getppid())
    with first.open("w") as turnstile, second.open("w") as lock:
        fcntl.flock(turnstile, how)
        fcntl.flock(lock, how)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield


def _locks(run: int) -> tuple[Path, Path]:
    folder = Path(tempfile.gettempdir())
    return folder / f"jfast-sync-tests-{run}.turnstile", folder / f"jfast-sync-tests-{run}.lock"
