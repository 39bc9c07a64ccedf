"""SIGTERM, SIGINT and a closed terminal ask the worker to stop; only in the main thread, and only while it runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["on_stop_signal"]

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_stop_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` at every SIGTERM and SIGINT inside the block; the handlers of before are put back after it.

    SIGHUP counts too where it would end the process; where it is ignored (``nohup``) or handled it stays so.

    Does nothing outside the main thread, where Python allows no handlers and the host's must stay.

    Args:
        callback: runs between any two bytecodes of the main thread, inside whatever lock that holds: it may set
            plain attributes and put into a ``SimpleQueue`` (whose put is re-entrant), nothing else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        callback()

    hangup = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else ()
    before = {number: signal.signal(number, handle) for number in (*_STOP_SIGNALS, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
