"""What ``jfast-sync demo`` does: a project of its own, real jobs, a real worker, and figures read from the database."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click

from jfast_sync.app import load
from jfast_sync.job import Job
from jfast_sync.loop import Deadline
from jfast_sync.ports import DeadFilter, Inspectable, JobRow
from jfast_sync_cli import demo_tasks as shop

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.job import DeadJob
    from jfast_sync.ports import Queue

__all__ = ["RABBITMQ_URLS", "REDIS_URLS", "Erasable", "Figures", "Kind", "Run", "plan", "project"]

RABBITMQ_URLS = ("amqp://", "amqps://")
REDIS_URLS = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")

_KEEP_DONE = 3600.0  # seconds; finished jobs are kept so that they can be counted
_POLL = 0.05


@runtime_checkable
class Erasable(Protocol):
    """A queue that can be removed with everything in it, because it lives outside of a database."""

    def erase(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of job fared, counted from rows."""

    task: str
    jobs: int
    done: int
    skipped: int
    retried: int
    dead: int
    replayed: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What the database says in the end, and what does not add up (nothing, or the demo has failed)."""

    kinds: tuple[Kind, ...]
    seconds: float
    wrong: tuple[str, ...]

    def total(self, name: str) -> int:
        return sum(getattr(kind, name) for kind in self.kinds)


def plan(jobs: int) -> dict[str, int]:
    """Say how many jobs of each kind make ``jobs`` (at least 10); charges come in pairs of one invoice."""
    counts = {
        shop.CONVERT: max(1, jobs // 200),
        shop.WEBHOOK: max(1, jobs // 20),
        shop.CHARGE: 2 * max(1, jobs // 20),
        shop.RECEIPT: jobs * 3 // 10,
    }
    return {shop.CHECKSUM: jobs - sum(counts.values())} | counts


@contextmanager
def project(dsn: str | None, threads: int) -> Iterator[JFast]:
    """Make a project that nobody else sees and remove it afterwards.

    Args:
        dsn: a PostgreSQL database, in which a schema of the demo's own is made; a Redis server, on which the queue has
            keys of its own and the tables are in a SQLite file; None: SQLite for both.
        threads: the worker's.
    """
    name = f"jfast_demo_{secrets.token_hex(4)}"
    broker = _broker(dsn)
    with _temporary_folder() as folder, _database(None if broker else dsn, name, folder) as private:
        file = folder / "jfast.toml"
        file.write_text('[app]\nname = "jfast-demo"\n')
        overrides: dict[str, dict[str, object]] = {
            "app": {"env": "local"},
            "plugins": {"enabled": ["observability", "database", "queue", "outbox"]},
            "database": {"dsn": private, "rls": False},
            "queue": {"backend": "auto", "name": name, "keep_done": _KEEP_DONE, "claim": "all"},
        }
        for table, values in broker.items():
            overrides[table] = {**overrides.get(table, {}), **values}
        # Removed after the app has closed: its worker counts until then.
        with ExitStack() as after, _app(file, overrides, threads) as app:
            after.callback(_remove, app.queue.backend)
            app.setup()
            assert app.database is not None
            app.database.transact(shop.tables.create_all)
            yield app


def _app(file: Path, overrides: Mapping[str, Mapping[str, object]], threads: int) -> JFast:
    return load(config_path=file, imports=(shop.__name__,), overrides=overrides, threads=threads)


def _broker(dsn: str | None) -> dict[str, dict[str, object]]:
    """Return the configuration of a queue that does not live in a database; none where it does."""
    if dsn is not None and dsn.startswith(RABBITMQ_URLS):
        return {"queue": {"backend": "rabbitmq", "rabbitmq_url": dsn}}
    if dsn is None or not dsn.startswith(REDIS_URLS):
        return {}
    enabled = ["observability", "database", "queue", "outbox", "cache"]
    return {"plugins": {"enabled": enabled}, "queue": {"backend": "redis"}, "cache": {"url": dsn}}


def _remove(backend: Queue) -> None:
    if isinstance(backend, Erasable):
        backend.erase()
        backend.close()


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder in which everything temporary of this process lands, also what wakes workers on SQLite."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="jfast-demo-") as name:
        tempfile.tempdir = name
        try:
            yield Path(name)
        finally:
            tempfile.tempdir = before


@contextmanager
def _database(dsn: str | None, name: str, folder: Path) -> Iterator[str]:
    if dsn is None:
        yield f"sqlite:///{folder / 'demo.db'}"
        return
    from sqlalchemy import make_url, text

    from jfast_sync.sql.engine import Database

    outer = Database(dsn, pool_size=1)
    try:
        outer.transact(lambda connection: connection.execute(text(f"CREATE SCHEMA {name}")))
        try:
            url = make_url(dsn)
            options = f"{url.query.get('options', '')} -csearch_path={name}".strip()
            yield url.update_query_dict({"options": options}).render_as_string(hide_password=False)
        finally:
            outer.transact(lambda connection: connection.execute(text(f"DROP SCHEMA {name} CASCADE")))
    finally:
        outer.dispose()


class Run:
    """One run of the demo, step by step.

    Args:
        app: of :func:`project`.
        jobs: how many.
        check: called between two looks at the queue; raises to end the run.
    """

    def __init__(self, app: JFast, jobs: int, check: Callable[[], None]) -> None:
        self._app = app
        self._check = check
        self._plan = plan(jobs)
        self._started = time.monotonic()
        self._deadline = Deadline(60 + jobs / 20)
        self._ids: dict[str, str] = {}  # job id: task
        self._dead: list[DeadJob] = []
        self._finished: list[JobRow] = []
        self._lists = isinstance(app.queue.backend, Inspectable)
        if not self._lists:  # a broker forgets what is done: whoever wants to know has to look when it happens
            app.on_success(lambda event: self._finished.append(JobRow(job=event.job, state="done")))

    def enqueue(self) -> int:
        """Store the jobs, the kinds mixed, and return how many ids the queue gave."""
        jobs = [
            Job(task=task, payload=_payload(task, number))
            for task, count in self._plan.items()
            for number in range(count)
        ]
        jobs.sort(key=lambda job: job.id[-8:])  # the random end: the kinds come mixed
        ids = self._app.queue.enqueue_many(jobs, progress=lambda _count: self._check())
        self._ids = dict(zip(ids, (job.task for job in jobs), strict=True))
        return len(self._ids)

    def work(self, total: int, progress: Callable[[int], None]) -> None:
        """Wait until no job is ready, delayed or running; ``progress`` is told how many more are through."""
        shown = 0
        while True:
            self._check()
            stats = self._app.queue.stats()
            left = stats.ready + stats.delayed + stats.running
            through = max(total - left, shown)
            progress(through - shown)
            shown = through
            if not left:
                return
            if self._deadline.passed:
                raise click.ClickException(f"the worker did not finish in time; {left} of {total} jobs are left")
            time.sleep(_POLL)

    def dead(self) -> list[DeadJob]:
        """Return the dead letters, newest first."""
        self._dead = self._app.queue.dead_letters.dead(DeadFilter(), limit=len(self._ids))
        return self._dead

    def fix_and_replay(self) -> int:
        """Remove the cause of the failures, put the dead letters back, and return how many went."""
        with self._app.session() as session:
            session.execute(shop.rates.insert().values(currency=_CURRENCY, rate=1.25))
        return len(self._app.queue.dead_letters.revive([letter.job.id for letter in self._dead]))

    def figures(self) -> Figures:
        """Count rows, and compare them with what was asked for."""
        rows = self._app.queue.inspect.jobs(state="done", limit=2 * len(self._ids)) if self._lists else self._finished
        written = self._written()
        kinds = tuple(self._kind(task, rows, written) for task in self._plan)
        return Figures(kinds, time.monotonic() - self._started, tuple(self._wrong(kinds, rows, written)))

    def _written(self) -> dict[str, int]:
        from sqlalchemy import func, select

        with self._app.session() as session:
            return {
                shop.RECEIPT: session.scalar(select(func.count()).select_from(shop.receipts)) or 0,
                shop.CHARGE: session.scalar(select(func.count()).select_from(shop.charges)) or 0,
            }

    def _kind(self, task: str, rows: list[JobRow], written: Mapping[str, int]) -> Kind:
        finished = {row.job.id: row.job.attempts for row in rows if row.job.task == task}
        dead = {letter.job.id: letter.job.attempts for letter in self._dead if letter.job.task == task}
        # A charge that ended without a row of its own is a duplicate that its key let skip.
        skipped = len(finished) - written[shop.CHARGE] if task == shop.CHARGE else 0
        attempts = Counter(finished) | Counter(dead)  # a replay starts to count anew: the larger figure holds
        return Kind(
            task=task,
            jobs=sum(name == task for name in self._ids.values()),
            done=len(finished) - skipped,
            skipped=skipped,
            retried=sum(count > 1 for count in attempts.values()),
            dead=len(dead),
            replayed=len(dead.keys() & finished.keys()),
        )

    def _wrong(self, kinds: tuple[Kind, ...], rows: list[JobRow], written: Mapping[str, int]) -> Iterator[str]:
        stats = self._app.queue.stats()
        if left := stats.ready + stats.delayed + stats.running + stats.dead:
            yield f"{left} jobs are still in the queue"
        if stray := {row.job.id for row in rows} - self._ids.keys():
            yield f"{len(stray)} finished jobs were never enqueued"
        wanted = self._plan
        for kind in kinds:
            if kind.jobs != wanted[kind.task] or kind.done + kind.skipped != kind.jobs:
                yield f"{kind.task}: {kind.done} done + {kind.skipped} skipped, {wanted[kind.task]} wanted"
            if kind.dead != kind.replayed or kind.dead != (wanted[kind.task] if kind.task == shop.CONVERT else 0):
                yield f"{kind.task}: {kind.dead} dead letters, {kind.replayed} replayed"
            if kind.retried != (wanted[kind.task] if kind.task in (shop.CONVERT, shop.WEBHOOK) else 0):
                yield f"{kind.task}: {kind.retried} retried"
        if written[shop.RECEIPT] != wanted[shop.RECEIPT]:
            yield f"{written[shop.RECEIPT]} receipts were written, {wanted[shop.RECEIPT]} wanted"
        if written[shop.CHARGE] != wanted[shop.CHARGE] // 2:
            yield f"{written[shop.CHARGE]} invoices were charged, {wanted[shop.CHARGE] // 2} wanted"


_CURRENCY = "XDR"


def _payload(task: str, number: int) -> dict[str, Any]:
    match task:
        case shop.CHARGE:
            return {"invoice": f"invoice-{number // 2}"}
        case shop.CONVERT:
            return {"currency": _CURRENCY, "amount": number}
        case _:
            return {"number": number}
