"""A project on disk as a user has one - jfast.toml and modules/ - and everything a test asks of it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jfast_sync import Job
from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.tasks.registry import Registry
from tests.process.store import EFFECTS, ONCE, JobRow, Store
from tests.process.workers import PROGRAMS, WorkerProcess
from tests.waiting import eventually

_TEMPLATE = Path(__file__).parent / "template"


@dataclass(frozen=True)
class Event:
    """What a handler noted outside every transaction; `at` is nanoseconds on the machine's monotonic clock."""

    kind: str
    job_id: str
    attempts: int
    pid: int
    at: int


class Project:
    """Jobs are enqueued from this process, worker processes run them, the database and a file tell what happened.

    `queue` are keys of `[plugin.queue]`, `pool_size` one of `[plugin.database]`; `enqueue_dsn` is a way to the same
    database that no fault is made on.
    """

    def __init__(
        self,
        folder: Path,
        dsn: str,
        *,
        enqueue_dsn: str | None = None,
        pool_size: int | None = None,
        **queue: object,
    ) -> None:
        self.folder = folder
        shutil.copytree(_TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        lines = ["[plugin.database]", f'dsn = "{dsn}"']
        lines += [f"pool_size = {pool_size}"] if pool_size is not None else []
        lines += ["[plugin.queue]"]
        lines += [f"{key} = {_toml(value)}" for key, value in queue.items()]
        (folder / "jfast.toml").write_text("\n".join(lines) + "\n")
        self.store = Store(enqueue_dsn or dsn)
        config = load_config(folder, overrides={"database": {"dsn": self.store.dsn}})
        # A registry of its own: this process declares no task, as a service that only enqueues does.
        self.jfast = JFast(config, tasks=Registry())
        self.jfast.setup()
        self.store.execute(EFFECTS)
        self.store.execute(ONCE)
        self._workers: list[WorkerProcess] = []

    # --- what a test does

    def enqueue(self, task: str, payload: dict[str, Any] | None = None, *, count: int = 1, **fields: Any) -> list[str]:
        """Enqueue `count` jobs of a task of the template and return their ids."""
        jobs = [Job(task=f"work.{task}", payload=payload or {}, **fields) for _ in range(count)]
        return self.jfast.queue.enqueue_many(jobs)

    def worker(self, *arguments: str, **environment: str) -> WorkerProcess:
        """Start `jfast-sync worker` here; it is killed after the test, whatever happens."""
        return self.run("worker", "jfast-sync", "worker", *arguments, **environment)

    def run(self, name: str, program: str, *arguments: str, **environment: str) -> WorkerProcess:
        """Start a program of this Python's environment in the project's folder; it is killed after the test."""
        command = [str(PROGRAMS / program), *arguments]
        process = WorkerProcess(self.folder, f"{name}-{len(self._workers) + 1}", command, environment)
        self._workers.append(process)
        return process

    def drain(self, *arguments: str, timeout: float = 60.0) -> WorkerProcess:
        """Let a fresh worker run everything that is left."""
        worker = self.worker("--drain", *arguments)
        assert worker.wait(timeout) == 0, worker.log
        return worker

    def open_gate(self, name: str) -> None:
        """Let the handlers that wait at a gate go on."""
        (self.folder / f"gate-{name}").touch()

    def close(self) -> None:
        """Kill what still runs, show what the workers said (pytest prints it for a failed test), close the database."""
        for worker in self._workers:
            worker.close()
        self.jfast.close()

    # --- what a test sees

    def events(self, kind: str | None = None) -> list[Event]:
        """What the handlers noted, in order."""
        file = self.folder / "events.log"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [Event(w[0], w[1], int(w[2]), int(w[3]), int(w[4])) for w in map(str.split, lines)]
        return [event for event in found if kind in (None, event.kind)]

    def starts(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(event.job_id for event in self.events("start"))

    def wait_for(self, kind: str, job_ids: list[str], timeout: float = 15.0) -> list[Event]:
        """Wait until each of these jobs has noted `kind`; return those events."""
        wanted = set(job_ids)

        def noted() -> list[Event]:
            return [event for event in self.events(kind) if event.job_id in wanted]

        return eventually(
            noted,
            timeout,
            until=lambda found: wanted <= {event.job_id for event in found},
            what=f"{kind!r} of {len(wanted)} jobs",
        )

    def wait_until_done(self, job_ids: list[str], timeout: float = 30.0) -> None:
        """Wait until these jobs have left the queue."""
        wanted = set(job_ids)
        eventually(
            lambda: [row for row in self.store.jobs() if row.id in wanted],
            timeout,
            until=lambda left: not left,
            what=f"{len(wanted)} jobs to be done",
            interval=0.03,
        )

    def wait_until(
        self, job_id: str, state: Callable[[JobRow | None], bool], timeout: float = 15.0, what: str = "the job's state"
    ) -> JobRow | None:
        """Wait until a job's row (None: it is gone) satisfies `state`."""
        return eventually(lambda: self.store.job(job_id), timeout, until=state, what=what)

    def wait_until_dead(self, job_id: str, timeout: float = 30.0) -> JobRow:
        """Wait until a job is a dead letter."""
        row = self.wait_until(job_id, lambda row: row is not None and row.status == "dead", timeout, "a dead letter")
        assert row is not None
        return row

    def assert_once(self, job_ids: list[str]) -> None:
        """Every one of these jobs is done, and its effect was committed exactly once."""
        left = [row for row in self.store.jobs() if row.id in set(job_ids)]
        assert left == []
        effects = self.store.effects()
        wrong = {job_id: effects[job_id] for job_id in job_ids if effects[job_id] != 1}
        assert wrong == {}


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
