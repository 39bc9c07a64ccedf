"""Runs the asynchronous sibling, in its own virtual environment: one JSON request per line in, one answer per line out.

``{"do": "open", "folder": ...}`` starts the sibling's own app with the ``jfast.toml`` there, as its ``jfast worker``
does; ``{"do": "enqueue", ...}`` calls the function of that name below.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from jfastframework import tracing
from jfastframework.app import create_app, get_context
from jfastframework.events import Event, Subscriber, subscribe
from jfastframework.outbox import Outbox, claim_once
from jfastframework.plugins.builtin.observability import request_id_var, tenant_id_var
from jfastframework.queues.base import Job, current_job
from jfastframework.queues.postgres import PostgresQueue
from jfastframework.queues.schedule import Schedule
from jfastframework.queues.sql_ticks import SqlTickStore
from jfastframework.queues.worker import Worker
from jfastframework.tasks import TaskContext, TaskSession, task
from sqlalchemy import text

carrier: ContextVar[dict[str, str] | None] = ContextVar("carrier", default=None)
EFFECT = text(
    "INSERT INTO effects (who, task, n, tenant_id, request_id, trace) "
    "VALUES ('sibling', :task, :n, :tenant, :request, :trace)"
)


class Tracing:
    """What its telemetry plugin installs, reduced to the carrier."""

    def inject(self) -> dict[str, str]:
        return dict(carrier.get() or {})

    @contextlib.contextmanager
    def attach(self, given: Any) -> Iterator[None]:
        token = carrier.set(dict(given))
        try:
            yield
        finally:
            carrier.reset(token)

    def span(self, _name: str, _attributes: Any) -> Any:
        return contextlib.nullcontext()


async def effect(session: Any, n: int) -> None:
    await session.execute(
        EFFECT,
        {
            "task": current_job().task,
            "n": n,
            "tenant": tenant_id_var.get(),
            "request": request_id_var.get(),
            "trace": (carrier.get() or {}).get("traceparent"),
        },
    )


@task("shop.note")
async def note(payload: dict, session: TaskSession) -> None:
    await effect(session, payload["n"])


@task("theirs.only")
async def theirs(payload: dict, session: TaskSession) -> None:
    await effect(session, payload["n"])


@task("shop.fails")
async def fails(payload: dict, ctx: TaskContext) -> None:
    raise ValueError("no")


@task("beat", every=timedelta(seconds=1))
async def beat(payload: dict) -> None: ...


@subscribe("receipt.registered", name="shop.react")
async def react(event: Event, session: TaskSession) -> None:
    await effect(session, event.data["n"])


class Sibling:
    """The running app, and what the tests ask of it."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx
        self.queue = ctx.require("queue")
        self.jobs: dict[str, Job] = {}
        self.worker: Worker | None = None
        self.running: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        async with self.ctx.require("db.sessionmaker")() as session, session.begin():
            yield session

    async def enqueue(self, *, via: str, count: int = 1, **fields: Any) -> list[str]:
        jobs = [Job(**{"payload": {"n": n}} | fields) for n in range(count)]
        for job in jobs:
            if via == "queue":
                await self.queue.enqueue(job)
                continue
            async with self.session() as session:
                if via == "outbox":
                    await self.ctx.require("outbox").enqueue(session, job)
                elif via == "relayed":
                    await Outbox(queue=None).enqueue(session, job)
                else:
                    await PostgresQueue(self.ctx.require("db.engine"), table=via).enqueue_in(session, job)
        return [job.id for job in jobs]

    async def rolled_back(self, **fields: Any) -> None:
        async with self.ctx.require("db.sessionmaker")() as session:
            await self.ctx.require("outbox").enqueue(session, Job(**fields))
            await session.rollback()

    async def publish(self, *, topic: str, **fields: Any) -> str:
        async with self.session() as session:
            return await self.ctx.require("outbox").publish(session, topic, Event(**fields))

    async def claim(self) -> dict[str, Any] | None:
        job = await self.queue.dequeue(timeout=0.1)
        if job is None:
            return None
        self.jobs[job.id] = job
        return json.loads(job.to_json())

    async def ack(self, *, job_id: str) -> None:
        await self.queue.ack(self.jobs[job_id])

    async def nack(self, *, job_id: str, retry: bool) -> None:
        await self.queue.nack(self.jobs[job_id], retry=retry)

    async def release(self, *, job_id: str) -> None:
        await self.queue.release(self.jobs[job_id])

    async def retry_dead(self) -> int:
        return await self.queue.retry_dead()

    async def work(self) -> int:
        """Run what is due, one after the other; return how many jobs that were."""
        worker = Worker(self.queue, self.ctx.require("tasks"), close_backend=False)
        done = 0
        while await worker.run_once():
            done += 1
        return done

    async def start_worker(self) -> None:
        self.worker = Worker(self.queue, self.ctx.require("tasks"), poll_timeout=0.02, close_backend=False)
        self.running = asyncio.create_task(self.worker.run())

    async def stop_worker(self) -> None:
        self.worker.stop()
        await self.running

    async def relay(self) -> int:
        return await self.ctx.require("outbox.relay").relay_once()

    async def inbox(self, *, message_id: str, consumer: str) -> bool:
        async with self.session() as session:
            return await claim_once(session, message_id, consumer=consumer)

    async def dead(self) -> list[dict[str, Any]]:
        return [job.describe() for job in await self.queue.dead()]

    async def tick(self, *, name: str, at: str) -> str:
        return Schedule.build(name, name, cron="@daily").job_id(datetime.fromisoformat(at))

    async def fire(self, *, name: str, at: str) -> bool:
        """Claim a tick as its scheduler does, in one transaction with the tick's job."""
        schedule = Schedule.build(name, "shop.note", cron="@daily")
        due = datetime.fromisoformat(at)

        async def enqueue(connection: Any) -> None:
            await self.queue.enqueue_in(connection, Job(task="shop.note", payload={"n": 0}, id=schedule.job_id(due)))

        store = SqlTickStore(self.ctx.require("db.engine"))
        await store.setup()
        return await store.fire(name, due, hold=timedelta(days=1), enqueue=enqueue)

    async def subscriber_job(self, *, event_type: str, name: str, event_id: str) -> str:
        return Subscriber(event_type=event_type, name=name, handler=react).job_id(event_id)

    async def job_json(self, *, raw: str | None = None, **fields: Any) -> str:
        return (Job(**fields) if raw is None else Job.from_json(raw)).to_json()

    async def event_json(self, *, raw: str | None = None, **fields: Any) -> str:
        if "occurred_at" in fields:
            fields["occurred_at"] = datetime.fromisoformat(fields["occurred_at"])
        return (Event(**fields) if raw is None else Event.from_json(raw)).to_json()


async def answer(sibling: Sibling, request: dict[str, Any]) -> Any:
    """Call what is asked for, as within the request of a tenant if one is given."""
    tenant_id_var.set(request.pop("tenant_id", None))
    request_id_var.set(request.pop("request_id", None))
    carrier.set(request.pop("trace", None))
    return await getattr(sibling, request.pop("do"))(**request)


async def serve(folder: str) -> None:
    """Run the app of one folder, and answer what is asked of it until it is closed."""
    os.chdir(folder)
    app = create_app()
    async with app.router.lifespan_context(app):
        sibling = Sibling(get_context(app))
        print(json.dumps({"answer": "open"}), flush=True)
        while (request := await read())["do"] != "close":
            # A task of its own, so that the context of one request is not the next one's.
            [result] = await asyncio.gather(answer(sibling, request), return_exceptions=True)
            failed = isinstance(result, BaseException)
            print(json.dumps({"error": repr(result)} if failed else {"answer": result}), flush=True)
    print(json.dumps({"answer": "closed"}), flush=True)


async def read() -> dict[str, Any]:
    return json.loads(await asyncio.to_thread(sys.stdin.readline) or '{"do": "close"}')


async def main() -> None:
    logging.disable(logging.CRITICAL)
    tracing.set_backend(Tracing())
    while (request := await read())["do"] == "open":
        await serve(request["folder"])


asyncio.run(main())
