"""Our tasks of the shared project, and looks at the database that both libraries work on."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import text

from jfast_sync import Job
from jfast_sync.context import origin
from jfast_sync.core import JFast
from jfast_sync.events import Event, subscribe
from jfast_sync.tasks import TaskSession, task

__all__ = ["REACT", "TRACE", "drain", "effects", "note_effect", "rows", "run", "tasks_of_the_shop"]

REACT: Final = "receipt.registered->shop.react"
TRACE: Final = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
_EFFECT: Final = text(
    "INSERT INTO effects (who, task, n, tenant_id, request_id, trace) VALUES ('ours', :task, :n, :tenant, :request, "
    ":trace)"
)


def note_effect(session: TaskSession, name: str, n: int) -> None:
    """Write who did what, and in whose name it runs."""
    here = origin()
    session.execute(
        _EFFECT,
        {
            "task": name,
            "n": n,
            "tenant": here.tenant_id,
            "request": here.request_id,
            "trace": (here.trace or {}).get("traceparent"),
        },
    )


def tasks_of_the_shop() -> None:
    """Declare what the sibling declares too, under the same names."""

    @task("shop.note")
    def note(payload: dict[str, Any], session: TaskSession) -> None:
        note_effect(session, "shop.note", payload["n"])

    @subscribe("receipt.registered", name="shop.react")
    def react(event: Event, session: TaskSession, job: Job) -> None:
        note_effect(session, job.task, event.data["n"])


def drain(jf: JFast, **options: Any) -> int:
    """Run our worker until nothing is left that it takes; return how many jobs it finished."""
    worker = jf.worker(**({"threads": 2, "drain": True} | options))
    assert worker.run() == 0
    return int(worker.counts.done)


def run(jf: JFast, statement: str, **parameters: Any) -> None:
    assert jf.database is not None
    jf.database.transact(lambda connection: connection.execute(text(statement), parameters))


def rows(jf: JFast, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    with jf.session() as session:
        return [tuple(row) for row in session.execute(text(statement), parameters)]


def effects(jf: JFast) -> list[tuple[Any, ...]]:
    return rows(jf, "SELECT who, task, n, tenant_id, request_id, trace FROM effects ORDER BY task, n")
