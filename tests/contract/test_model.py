"""Random sequences of operations, compared step by step with a model that fits on a page."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from jfast_sync.job import Lease
from jfast_sync.outcome import Bury, Done, Outcome, Release, Retry
from jfast_sync.ports import Held, Settled
from tests.contract.backends import VISIBILITY, Backend, MemoryBackend, SqliteBackend
from tests.contract.steps import a_job, claim, extend, seconds, settle

MAX_ATTEMPTS = 3


@dataclass
class Model:
    """What a job should look like."""

    state: str = "ready"
    due: float = 0.0
    attempts: int = 0
    lapses: int = 0
    token: str | None = None
    until: float = 0.0


class QueueMachine(RuleBasedStateMachine):
    """Every rule does one thing to the queue and to the model, and compares the answers."""

    leases: Bundle[Lease] = Bundle("leases")
    backend: Backend

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.make()
        self.queue: Any = self.backend.open()
        self.now, self.jobs = 0.0, dict[str, Model]()

    def make(self) -> Backend:
        return MemoryBackend()

    def teardown(self) -> None:
        self.backend.close()

    @rule(delay=st.sampled_from([0, 0, 30]))
    def enqueue(self, delay: int) -> None:
        job = a_job(id=f"job-{len(self.jobs)}", max_attempts=MAX_ATTEMPTS, delay=seconds(delay))
        assert self.queue.enqueue([job, job]) == [job.id]
        self.jobs[job.id] = Model(due=self.now + delay)

    @rule(target=leases, limit=st.integers(1, 3))
    def claim(self, limit: int) -> Any:
        due = {name for name, job in self.jobs.items() if job.state == "ready" and job.due <= self.now}
        found = claim(self.queue, limit)
        assert len(found) == min(limit, len(due))
        for lease in found:
            assert lease.job.id in due
            job = self.jobs[lease.job.id]
            job.state, job.token, job.until, job.attempts = (
                "running",
                lease.token,
                self.now + VISIBILITY,
                job.attempts + 1,
            )
            assert (lease.job.attempts, lease.lapses) == (job.attempts, job.lapses)
        return multiple(*found)

    @rule(lease=leases, outcome=st.sampled_from([Done(), Bury("no"), Release(), Retry(20.0), Retry(20.0, refund=True)]))
    def settle(self, lease: Lease, outcome: Outcome) -> None:
        job = self.jobs[lease.job.id]
        current = job.state == "running" and job.token == lease.token
        assert settle(self.queue, lease, outcome) is (Settled.APPLIED if current else Settled.REFUSED)
        if not current:
            return
        job.token = None
        match outcome:
            case Done():
                job.state = "gone"
            case Bury():
                job.state = "dead"
            case Release():
                job.state, job.attempts = "ready", job.attempts - 1
            case Retry():
                job.state, job.due, job.attempts = "ready", self.now + outcome.delay, job.attempts - outcome.refund

    @rule(lease=leases)
    def extend(self, lease: Lease) -> None:
        job = self.jobs[lease.job.id]
        current = job.state == "running" and job.token == lease.token
        assert extend(self.queue, lease) is (Held.YES if current else Held.LOST)
        if current:
            job.until = self.now + VISIBILITY

    @rule(elapsed=st.sampled_from([1.0, 25.0, VISIBILITY + 1]))
    def wait(self, elapsed: float) -> None:
        self.backend.pass_time(elapsed)
        self.now += elapsed

    @rule()
    def recover(self) -> None:
        lapsed = [job for job in self.jobs.values() if job.state == "running" and job.until <= self.now]
        assert self.queue.recover() == len(lapsed)
        for job in lapsed:
            job.state, job.token, job.lapses = "ready", None, job.lapses + 1
            job.attempts = min(job.attempts, MAX_ATTEMPTS - 1)

    @precondition(lambda self: any(job.state == "dead" for job in self.jobs.values()))
    @rule()
    def revive(self) -> None:
        dead = [name for name, job in self.jobs.items() if job.state == "dead"]
        assert sorted(self.queue.revive(dead)) == sorted(dead)
        for name in dead:
            self.jobs[name] = Model(due=self.now)

    @rule(lease=consumes(leases))
    def another_process_takes_over(self, lease: Lease) -> None:
        self.queue = self.backend.open()

    @invariant()
    def counts_agree(self) -> None:
        stats, jobs = self.queue.stats(), self.jobs.values()
        assert stats.ready == sum(job.state == "ready" and job.due <= self.now for job in jobs)
        assert stats.delayed == sum(job.state == "ready" and job.due > self.now for job in jobs)
        assert stats.running == sum(job.state == "running" for job in jobs)
        assert stats.dead == sum(job.state == "dead" for job in jobs)


class SqliteMachine(QueueMachine):
    folder: ClassVar[tempfile.TemporaryDirectory[str]]

    def make(self) -> Backend:
        self.own = tempfile.TemporaryDirectory()
        return SqliteBackend(f"sqlite:///{Path(self.own.name) / 'jobs.db'}")

    def teardown(self) -> None:
        super().teardown()
        self.own.cleanup()


def _steady(examples: int, steps: int) -> settings:
    """The same examples every time, whatever the machine's pace: no example database, no deadline."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


TestMemory = QueueMachine.TestCase
TestMemory.settings = _steady(60, 40)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = _steady(12, 25)
