"""For the tests of applications: an app of their own, jobs run in the test's thread, and a clock that stands still.

::

    from jfast_sync.testing import assert_enqueued, drain, sqlite_app

    def test_an_order_is_confirmed() -> None:
        with sqlite_app() as jf:
            place_order(7)
            assert_enqueued(jf, "order.confirm", payload={"order": 7})
            drain(jf)

Nothing here starts a worker, waits or sleeps. What runs a job is the worker's own code, so sessions, idempotency keys,
retries and dead letters are what they are in production; only timeouts are not watched.
"""

from __future__ import annotations

from jfast_sync.testing.apps import memory_app, sqlite_app
from jfast_sync.testing.clock import FakeClock
from jfast_sync.testing.running import Drained, drain, inline
from jfast_sync.testing.waiting import assert_enqueued, assert_not_enqueued, enqueued

__all__ = [
    "Drained",
    "FakeClock",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "inline",
    "memory_app",
    "sqlite_app",
]
