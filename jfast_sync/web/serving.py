"""When a process begins to serve: its background threads start then, after every fork and before any request.

A module that builds an app is imported by many that never serve: a preloading master, the parent of a reloader, a
command, a test. So nothing starts with the app. The servers known here are watched instead: gunicorn's worker processes
and werkzeug's server (``flask run``, ``app.run()``) as they enter their loops; uWSGI's workers after their fork or,
with lazy apps, once their app is loaded. Under any other server the first request starts what is not running yet;
:meth:`jfast_sync.core.JFast.start` does it earlier. What could not be started is tried again, and ``/ready`` says it.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from jfast_sync.forks import after_fork, after_uwsgi_fork, renew
from jfast_sync.loop import Deadline
from jfast_sync.redact import error_text
from jfast_sync.web.flights import NO_THREADS, threads_run

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

    from jfast_sync.core import JFast

__all__ = ["begin", "begin_for", "start_when_serving"]

log = logging.getLogger(__name__)

_HOOKED: Final = "_jfast_begins_to_serve"
_LOADS: Final = 300.0  # seconds an app has to be loaded; after that its first request is waited for
_LOOKS: Final = 0.05
_PAUSE: Final = 5.0  # seconds after a failed start before the next is tried
_TESTS: Final = ("werkzeug.request", "paste.testing")  # werkzeug's client (Flask's, too) and WebTest
#: What a server tells and who makes a request up does not; ASGI servers that run a WSGI app leave SERVER_SOFTWARE out.
_SERVERS: Final = ("SERVER_SOFTWARE", "uwsgi.version")
_LIKELY: Final = ("REMOTE_ADDR", "asgi.scope", "wsgi.multithread", "wsgi.multiprocess")
_UNKNOWN: Final = (
    "nothing works in the background here: requests come from nobody that is known as a server; call jf.start() where "
    "the process begins to serve, after its fork"
)

_apps: WeakSet[JFast] = WeakSet()
_lock = threading.Lock()
_begun: WeakSet[JFast] = WeakSet()  # those of this process
_tried: WeakKeyDictionary[JFast, Deadline] = WeakKeyDictionary()  # until when not to start a failed one again


def _forked() -> None:
    global _lock  # noqa: PLW0603 - a lock that some thread of the parent held would never be free here
    _lock = threading.Lock()
    _begun.clear()
    _tried.clear()


after_fork(_forked)


def start_when_serving(core: JFast) -> None:
    """Start the app's background threads when this process, or one forked from it, begins to serve."""
    _apps.add(core)
    _watch_gunicorn()
    _watch_werkzeug()
    _watch_uwsgi()


def begin() -> None:
    """Start every app of this process that is not started yet; it serves from now on."""
    renew()
    if not _waiting():
        return
    with _lock:
        apps = _waiting()
        _begun.update(apps)
    if not threads_run():
        # A thread would stand still wherever the request that let it run has ended: in a transaction, for example.
        log.error("nothing works in the background here: %s", NO_THREADS)
        return
    for app in apps:
        try:
            app.start()
        except Exception as exc:
            # The server's own loop must not end for it.
            app.background = f"the background threads do not run: {error_text(exc)}"
            log.error("of %s %s", app.config.app.name, app.background)  # noqa: TRY400 - redacted, unlike exc_info
            _tried[app] = Deadline(_PAUSE)
            _begun.discard(app)


def _waiting() -> list[JFast]:
    return [app for app in list(_apps) if app not in _begun and not app.closed and _may_be_tried(app)]


def _may_be_tried(app: JFast) -> bool:
    deadline = _tried.get(app)
    return deadline is None or deadline.passed


def begin_for(environ: WSGIEnvironment) -> None:
    """Start what is not running yet, when a request came from a server and not from a test's client."""
    renew()
    if not _waiting():
        return
    if any(environ.get(mark) for mark in _SERVERS):
        begin()
    elif not any(mark in environ for mark in _TESTS):
        if any(environ.get(mark) for mark in _LIKELY):
            begin()
        else:
            _say_unknown()


def _say_unknown() -> None:
    for app in _waiting():
        if app.works_in_background and not app.background:
            app.background = _UNKNOWN
            log.warning("%s: %s", app.config.app.name, _UNKNOWN)


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
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None or hasattr(uwsgi, _HOOKED):
        return
    setattr(uwsgi, _HOOKED, True)
    after_uwsgi_fork(_begin_in_worker)
    if uwsgi.worker_id() and threads_run():  # forked already: the apps are lazy, and this one is being loaded
        threading.Thread(target=_begin_when_loaded, args=(uwsgi,), name="jfast-begin", daemon=True).start()


def _begin_in_worker(uwsgi: Any) -> None:
    if uwsgi.worker_id():  # not in a mule or a spooler
        begin()


def _begin_when_loaded(uwsgi: Any) -> None:
    # Not while the app is being imported: its tasks would not all be declared. uWSGI tells nobody when it is done.
    deadline, number = Deadline(_LOADS), uwsgi.worker_id()
    while not deadline.passed:
        if any(worker["apps"] for worker in uwsgi.workers() if worker["id"] == number):
            return begin()
        time.sleep(_LOOKS)
    return None
