"""What the worker processes under test run; every start and every effect leaves a trace that a test can read.

Starts, ends and landmarks in between are appended to a file, outside every transaction: an attempt that is rolled
back is seen too. Effects are rows that a handler writes through its session.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from jfast_sync import Job, current_job
from jfast_sync.tasks import TaskContext, TaskSession, task

FOLDER = Path(__file__).resolve().parents[2]


def mark(kind: str, job: Any) -> None:
    """Append one line in one write: complete or absent, whatever happens to the process."""
    line = f"{kind} {job.id} {job.attempts} {os.getpid()} {time.monotonic_ns()}\n"
    file = os.open(FOLDER / "events.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def effect(session: TaskSession, job: Job) -> None:
    session.execute(
        text("INSERT INTO effects (job_id, attempts, pid) VALUES (:id, :attempts, :pid)"),
        {"id": job.id, "attempts": job.attempts, "pid": os.getpid()},
    )


def wait_at_gate(payload: dict, job: Job) -> None:
    """Stay here until the test opens the gate; only the first start is held up."""
    gate = payload.get("gate")
    while gate and job.attempts == 1 and not (FOLDER / f"gate-{gate}").exists():
        time.sleep(0.01)


@task("work.quick")
def quick(payload: dict, job: Job, session: TaskSession) -> None:
    mark("start", job)
    time.sleep(payload.get("seconds", 0))
    effect(session, job)
    mark("end", job)


@task("work.plain")
def plain(payload: dict, job: Job) -> None:
    mark("start", job)
    time.sleep(payload.get("seconds", 0))
    wait_at_gate(payload, job)
    mark("end", job)


@task("work.blocked")
def blocked(job: Job) -> None:
    mark("start", job)
    time.sleep(600)
    mark("end", job)


@task("work.blocked_first")
def blocked_first(job: Job, session: TaskSession) -> None:
    """Ends only where it is started for the second time."""
    mark("start", job)
    if sum(line.startswith(f"start {job.id} ") for line in (FOLDER / "events.log").read_text().splitlines()) == 1:
        time.sleep(600)
    effect(session, job)
    mark("end", job)


@task("work.writes_then_sleeps")
def writes_then_sleeps(job: Job, session: TaskSession) -> None:
    mark("start", job)
    effect(session, job)
    mark("wrote", job)
    time.sleep(600)


@task("work.paused_before_write")
def paused_before_write(payload: dict, job: Job, session: TaskSession) -> None:
    mark("start", job)
    wait_at_gate(payload, job)
    effect(session, job)
    mark("end", job)


@task("work.paused_after_write")
def paused_after_write(payload: dict, job: Job, session: TaskSession) -> None:
    """Two starts cannot both write: the key makes the later one wait for the earlier one's transaction."""
    mark("start", job)
    effect(session, job)
    session.execute(text("INSERT INTO once (job_id) VALUES (:id)"), {"id": job.id})
    mark("wrote", job)
    wait_at_gate(payload, job)
    mark("end", job)


@task("work.paused_after_claim", idempotent_on=lambda payload: payload["key"])
def paused_after_claim(payload: dict, job: Job, session: TaskSession) -> None:
    mark("start", job)
    wait_at_gate(payload, job)
    effect(session, job)
    mark("end", job)


@task("work.spins")
def spins(payload: dict, job: Job) -> None:
    """Computes without end, until told to stop if asked to listen."""
    mark("start", job)
    running = current_job()
    while not (payload.get("listens") and running.cancelled):
        sum(range(1000))
    mark("end", job)


@task("work.changes_folder")
def changes_folder(job: Job, session: TaskSession) -> None:
    """What a handler may do to its process by accident."""
    mark("start", job)
    os.chdir("/")
    effect(session, job)


@task("work.leaves")
def leaves(payload: dict, job: Job, session: TaskSession) -> None:
    mark("start", job)
    effect(session, job)
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "generator": GeneratorExit}[payload["how"]]


@task("work.keyed", idempotent_on=lambda payload: payload["key"])
def keyed(payload: dict, job: Job, session: TaskSession) -> None:
    """One effect per key, under whatever id."""
    mark("start", job)
    time.sleep(payload.get("seconds", 0))
    effect(session, job)
    mark("end", job)


@task("work.bomb")
def bomb(payload: dict, job: Job) -> None:
    """Takes its process with it, once the neighbours it waits for are there."""
    mark("start", job)
    wait_at_gate(payload, job)
    if payload.get("signal"):
        os.kill(os.getpid(), signal.Signals[payload["signal"]])
        time.sleep(600)
    os._exit(payload.get("status", 7))


@task("work.fails")
def fails(job: Job, session: TaskSession) -> None:
    mark("start", job)
    effect(session, job)
    raise RuntimeError("as it should")


@task("work.enqueues")
def enqueues(payload: dict, job: Job, session: TaskSession, context: TaskContext) -> None:
    """One effect, and one job more in the same transaction."""
    mark("start", job)
    effect(session, job)
    context.outbox.enqueue(session, Job(task="work.quick", id=f"{job.id}-child"))
    mark("end", job)


@task("work.waits_for_stop")
def waits_for_stop(job: Job) -> None:
    """Ends at once when told to stop."""
    mark("start", job)
    current_job().wait_cancelled(600)
    mark("end", job)
