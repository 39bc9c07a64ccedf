"""``jfast-sync demo``: the whole product in half a minute, on a database of its own."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Invocation, say_error
from jfast_sync_cli.options import common_options, json_option
from jfast_sync_cli.show import print_json, print_table

if TYPE_CHECKING:
    from jfast_sync_cli.demo_run import Figures, Run

__all__ = ["demo"]

_COLUMNS = ("jobs", "done", "skipped", "retried", "dead", "replayed")


@click.command()
@click.option(
    "--backend",
    "dsn",
    metavar="URL",
    help="postgresql://..., redis://... or amqp://...: run it there. [default: SQLite, a temporary file]",
)
@click.option("--jobs", type=click.IntRange(10, 100_000), default=1000, show_default=True, help="How many jobs.")
@click.option("--threads", type=click.IntRange(1, 64), default=8, show_default=True, help="The worker's threads.")
@json_option
@common_options
@click.pass_context
def demo(ctx: click.Context, dsn: str | None, jobs: int, threads: int, as_json: bool) -> None:
    """Run real jobs through a real worker and count what happened.

    Some jobs work the processor, some write to the database, some fail twice before they succeed, some are queued
    twice and must run once, and some become dead letters whose cause is then removed and which are replayed. The
    figures at the end are counted from the database.

    On PostgreSQL everything happens in a schema of its own, dropped at the end; nothing that is there is touched. On
    Redis and RabbitMQ the queue has a name of its own, removed at the end, and the tables are in a temporary SQLite
    file.
    """
    _check_dsn(dsn)
    invocation: Invocation = ctx.obj
    if not invocation.debug:  # the demo shows failures itself, when it is their turn
        logging.getLogger("jfast_sync").setLevel(logging.CRITICAL + 1)
    from jfast_sync_cli.demo_run import Run, project

    stop = _Stop()
    with stop.listening(), project(dsn, threads) as app:
        backend = app.queue.backend.backend
        run = Run(app, jobs, stop.check)
        say = _silent if as_json else click.echo
        say(f"A new project on {backend}, a worker with {threads} threads.\n")
        figures = _run(app, run, threads, say=say, bar=not as_json)
    if as_json:
        totals = {name: figures.total(name) for name in ("jobs", "done", "retried", "dead", "replayed", "skipped")}
        print_json({"backend": backend, **totals, "seconds": round(figures.seconds, 2)})
    else:
        _summary(figures)
    if figures.wrong:
        say_error("the figures do not add up:\n  " + "\n  ".join(figures.wrong))
        ctx.exit(Exit.PROBLEMS)


def _run(app: Any, run: Run, threads: int, *, say: Any, bar: bool) -> Figures:
    started = time.monotonic()
    count = run.enqueue()
    say(f"{count:,} jobs enqueued in {time.monotonic() - started:.2f} s.")
    app.start_worker(threads=threads, grace=2.0)
    _work(run, count, "Working", say=say, bar=bar)
    dead = run.dead()
    say(f"\n{len(dead)} dead letter{'' if len(dead) == 1 else 's'} after all attempts. The newest:")
    if bar and dead:
        from jfast_sync_cli.jobs_show import print_dead

        print_dead(dead[0])
    replayed = run.fix_and_replay()
    say(f"The missing rate is put into its table; {replayed} replayed.\n")
    _work(run, replayed, "Replaying", say=say, bar=bar)
    return run.figures()


def _work(run: Run, count: int, label: str, *, say: Any, bar: bool) -> None:
    terminal = bar and sys.stdout.isatty()
    with click.progressbar(length=count, label=f"{label:<9}", show_pos=True, hidden=not terminal) as progress:
        run.work(count, progress.update)
    if not terminal:
        say(f"{label}: {count:,} jobs are through.")


def _summary(figures: Figures) -> None:
    click.echo("\nWhat the database says:\n")
    rows: list[tuple[object, ...]] = [
        (kind.task, *(getattr(kind, name) for name in _COLUMNS)) for kind in figures.kinds
    ]
    rows.append(("all", *(figures.total(name) for name in _COLUMNS)))
    print_table(("task", *_COLUMNS), rows)
    done, skipped, jobs = (figures.total(name) for name in ("done", "skipped", "jobs"))
    click.echo(
        f"\n{done:,} done + {skipped:,} skipped = {done + skipped:,} of {jobs:,} jobs, in {figures.seconds:.1f} s."
    )


def _check_dsn(dsn: str | None) -> None:
    from jfast_sync_cli.demo_run import RABBITMQ_URLS, REDIS_URLS

    known = ("postgres://", "postgresql://", "postgresql+", *REDIS_URLS, *RABBITMQ_URLS)
    if dsn is not None and not dsn.startswith(known):
        raise click.UsageError(
            "--backend takes postgresql://user@host/database, redis://host/0 or amqp://user:password@host/; "
            "without it the demo makes a SQLite file of its own"
        )


def _silent(_message: str) -> None:
    """Say nothing: ``--json`` prints only JSON."""


class _Stop:
    """SIGINT and SIGTERM set a flag that is looked at between two steps, so that everything is removed in order.

    The third signal ends the process as it would have without this.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def check(self) -> None:
        """Leave if a signal has come."""
        if self._numbers:
            raise click.exceptions.Exit(128 + self._numbers[0])

    @contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def note(number: int, _frame: object) -> None:
            self._numbers.append(number)
            if len(self._numbers) > 1:
                restore()

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            restore()
