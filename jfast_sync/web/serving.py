"""When a process begins to serve: its background threads start then, after every fork and before any request.

A module that builds an app is imported by many that never serve: a preloading master, the parent of a reloader, a
command, a test. So nothing starts with the app. The servers known here are watched instead: gunicorn's worker processes
and werkzeug's server (``flask run``, ``app.run()``) as they enter their loops, uWSGI's workers after their fork. Under
any other server the first request starts what is not running yet; :meth:`jfast_sync.core.JFast.start` does it earlier.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from jfast_sync.redact import error_text

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

    from jfast_sync.core import JFast

__all__ = ["begin", "begin_for", "start_when_serving", "threads_missing"]

log = logging.getLogger(__name__)

_HOOKED: Final = "_jfast_begins_to_serve"

_apps: WeakSet[JFast] = WeakSet()
_lock = threading.Lock()
_begun: dict[int, int] = {}  # by process, how many of its apps were started


def _forked() -> None:
    global _lock  # noqa: PLW0603 - a lock that some thread of the parent held would never be free here
    _lock = threading.Lock()
    _begun.clear()


os.register_at_fork(after_in_child=_forked)


def start_when_serving(core: JFast) -> None:
    """Start the app's background threads when this process, or one forked from it, begins to serve."""
    _apps.add(core)
    _watch_gunicorn()
    _watch_werkzeug()
    _watch_uwsgi()


def begin() -> None:
    """Start every app of this process, each once; it serves from now on."""
    with _lock:
        apps = list(_apps)
        if _begun.get(os.getpid(), 0) >= len(apps):
            return
        _begun[os.getpid()] = len(apps)
    for app in apps:
        if app.closed:
            continue
        try:
            app.start()
        except Exception as exc:
            # The server's own loop must not end for it: what is missing shows in /ready.
            log.error("the background threads of %s do not run: %s", app.config.app.name, error_text(exc))  # noqa: TRY400


def begin_for(environ: WSGIEnvironment) -> None:
    """Start what is not running yet, when a request came from a server and not from a test's client."""
    if _begun.get(os.getpid(), 0) < len(_apps) and (environ.get("SERVER_SOFTWARE") or "uwsgi.version" in environ):
        begin()


def threads_missing() -> str | None:
    """Say why background threads cannot work in this process; None where they can."""
    uwsgi = sys.modules.get("uwsgi")
    options = getattr(uwsgi, "opt", {})
    if uwsgi is None or any(name in options for name in ("enable-threads", b"enable-threads", "threads", b"threads")):
        return None
    return "uWSGI runs without threads: start it with --enable-threads, or nothing works in the background here"


# --- the servers -------------------------------------------------------------------------------------------------


def _watch_gunicorn() -> None:
    # Every kind of its workers tells the master that it is alive, from its own process, before it accepts anything.
    if "gunicorn.arbiter" in sys.modules:
        _call_first(import_module("gunicorn.workers.base").Worker, "notify")


def _watch_werkzeug() -> None:
    # Only the process that serves comes here: the reloader's parent starts a child instead.
    serving = sys.modules.get("werkzeug.serving")
    if serving is not None:
        _call_first(serving.BaseWSGIServer, "serve_forever")


def _call_first(owner: Any, name: str) -> None:
    """Call ``begin`` before a method of a class, each time: a forked process begins on its own."""
    original: Callable[..., Any] = getattr(owner, name)
    if hasattr(original, _HOOKED):
        return

    @functools.wraps(original)
    def beginning(*args: Any, **kwargs: Any) -> Any:
        begin()
        return original(*args, **kwargs)

    setattr(beginning, _HOOKED, True)
    setattr(owner, name, beginning)


def _watch_uwsgi() -> None:
    try:
        uwsgi: Any = import_module("uwsgi")  # there inside a uWSGI process only
    except ImportError:
        return
    before = getattr(uwsgi, "post_fork_hook", None)  # with lazy apps it has passed: the first request starts them
    if hasattr(before, _HOOKED):
        return

    def forked() -> None:
        if before is not None:
            before()
        if uwsgi.worker_id():  # not in a mule or a spooler
            begin()

    setattr(forked, _HOOKED, True)
    uwsgi.post_fork_hook = forked
