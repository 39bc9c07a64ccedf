"""Events: a module says what has happened, and whoever subscribed to that type reacts, each in a job of its own.

Declare subscribers in ``modules/<module>/tasks.py``::

    from jfast_sync.events import Event, subscribe
    from jfast_sync.tasks import TaskSession

    @subscribe("receipt.registered")
    def check_budget(event: Event, session: TaskSession) -> None: ...

and publish where it happens: ``jf.outbox.publish(session, "receipts", Event(type="receipt.registered", data={...}))``.
"""

from __future__ import annotations

from jfast_sync.errors import UndeliverableEvent
from jfast_sync.event import Event
from jfast_sync.events.subscribe import subscribe

__all__ = ["Event", "UndeliverableEvent", "subscribe"]
