"""Means of ending what does not end by itself: another thread's handler or transaction, a process a handler forked."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Literal, NoReturn, Protocol

from jfast_sync.redact import error_text

__all__ = ["Breakable", "break_off", "end_fork", "raise_in"]

log = logging.getLogger("jfast_sync.worker")


class Breakable(Protocol):
    """Work that can be ended from another thread: a transaction, or a child process."""

    def cancel(self) -> object:
        """Ask it to stop: cancel the running statement, terminate the process."""
        ...

    def terminate(self) -> object:
        """End it: close the connection from outside, kill the process."""
        ...


def end_fork(error: BaseException | None) -> NoReturn:
    """End a process that a handler forked and that came out of the handler: the worker's transaction is not its own."""
    if error is not None and not isinstance(error, SystemExit):
        log.error("a process that a job's handler forked ends: %s", error_text(error))
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0 if error is None or (isinstance(error, SystemExit) and not error.code) else 1)


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have ``kind`` raised in a thread at its next bytecode; None takes back one that has not struck yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(kind) if kind is not None else None
    )


def break_off(work: Breakable | None, how: Literal["cancel", "terminate"]) -> threading.Thread | None:
    """Cancel or terminate ``work`` in a thread of its own: a server that does not answer must not stop the watcher."""
    if work is None:
        return None

    def run() -> None:
        try:
            work.cancel() if how == "cancel" else work.terminate()
        except Exception as exc:
            log.warning("could not %s a job's connection: %s", how, error_text(exc))

    thread = threading.Thread(target=run, name=f"jfast-{how}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # at the interpreter's end no thread can be started any more
        run()
        return None
    return thread
