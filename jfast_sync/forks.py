"""What a forked process has to forget of its parent, done once in each before anything of ours runs there.

Python tells of its own forks. uWSGI forks without telling Python, unless it runs with ``--py-call-osafterfork``: there
its own hook tells. An app may replace that hook later, so whoever lets requests in calls :func:`renew` as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["after_fork", "after_uwsgi_fork", "renew"]

_renewals: list[Callable[[], None]] = []
_pid = os.getpid()
_lock = threading.Lock()


def after_fork(renewal: Callable[[], None]) -> None:
    """Call ``renewal`` once in every process that is forked from this one, before anything else of ours."""
    _renewals.append(renewal)


def renew() -> None:
    """Forget what is the parent's, where this process is forked and has not yet; from any thread."""
    global _pid  # noqa: PLW0603 - it is about this process
    if _pid == os.getpid():
        return
    with _lock:
        if _pid != os.getpid():
            for renewal in _renewals:
                renewal()
            _pid = os.getpid()


def after_uwsgi_fork(call: Callable[[Any], None]) -> None:
    """Call ``call(uwsgi)`` in every process that uWSGI forks, after the hook that is there by now; nothing elsewhere.

    With lazy apps that fork is over before any app is imported.
    """
    try:
        uwsgi: Any = import_module("uwsgi")  # there inside a uWSGI process only
    except ImportError:
        return
    before = getattr(uwsgi, "post_fork_hook", None)

    def forked() -> None:
        renew()  # first: a hook of the app may use the database
        if before is not None:
            before()
        call(uwsgi)

    uwsgi.post_fork_hook = forked


def _forked() -> None:
    global _lock  # noqa: PLW0603 - a lock that some thread of the parent held would never be free here
    _lock = threading.Lock()
    renew()


os.register_at_fork(after_in_child=_forked)
after_uwsgi_fork(lambda _uwsgi: None)
