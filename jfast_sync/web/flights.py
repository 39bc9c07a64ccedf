"""Questions asked side by side, each for a bounded time, at most one thread per question.

A driver can hang for as long as it likes: the thread that waits for it cannot be ended, only left alone. So a question
still under way is waited for again, never asked a second time, and polling adds no threads.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from jfast_sync.loop import Deadline

__all__ = ["NO_THREADS", "Flights", "NoAnswer", "threads_run"]

NO_THREADS: Final = "uWSGI runs no threads here; start it with --enable-threads"

T = TypeVar("T")


class NoAnswer(Exception):
    """A question was not answered in time; it is still under way."""


def threads_run() -> bool:
    """Say whether a thread started here would ever run: an older uWSGI must be told to enable threads."""
    return bool(getattr(sys.modules.get("uwsgi"), "has_threads", True))


def _in_place(question: Callable[[], T]) -> T | Exception:
    try:
        return question()
    except Exception as exc:
        return exc


class _Flight(Generic[T]):
    """One question under way in a daemon thread of its own."""

    def __init__(self, name: str, question: Callable[[], T]) -> None:
        self._question = question
        self._landed = threading.Event()
        self._answer: T | Exception = NoAnswer()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = _in_place(self._question)
        except BaseException as exc:
            self._answer = RuntimeError(f"ended by {type(exc).__name__}")
        finally:
            self._landed.set()

    @property
    def landed(self) -> bool:
        return self._landed.is_set()

    def wait(self, deadline: Deadline) -> T | Exception:
        return self._answer if self._landed.wait(deadline.remaining()) else NoAnswer()


class Flights(Generic[T]):
    """Ask named questions side by side.

    Args:
        timeout: seconds all questions of one call have together.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight[T]] = {}

    def ask(self, questions: Mapping[str, Callable[[], T]]) -> dict[str, T | Exception]:
        """Return each question's answer, the exception it raised, or :class:`NoAnswer`."""
        if self._pid != os.getpid():
            self._forget()  # threads do not survive a fork, and the lock may have been held at that moment
        if not threads_run():
            return {name: _in_place(question) for name, question in questions.items()}
        deadline = Deadline(self.timeout)
        with self._lock:
            flights = {name: self._under_way(name, question) for name, question in questions.items()}
        return {name: flight.wait(deadline) for name, flight in flights.items()}

    def _under_way(self, name: str, question: Callable[[], T]) -> _Flight[T]:
        flight = self._flights.get(name)
        if flight is None or flight.landed:
            flight = self._flights[name] = _Flight(f"jfast-ask-{name}", question)
        return flight
