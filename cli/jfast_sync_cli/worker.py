"""``jfast-sync worker``: run jobs until told to stop."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import DURATION, project_options
from jfast_sync_cli.project import open_app, read_config

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.config import Config
    from jfast_sync.worker import Worker

__all__ = ["worker"]


class QueueNames(click.ParamType[frozenset[str]]):
    """Names separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        names = value if isinstance(value, frozenset) else frozenset(part.strip() for part in value.split(","))
        if "" in names:
            self.fail(f"{value!r} has an empty name; write them as mail,reports", param, ctx)
        return names


@click.command()
@click.option("--threads", type=click.IntRange(1, 1000), default=8, show_default=True, help="Jobs side by side.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option(
    "--grace", type=DURATION, default="25s", show_default=True, help="What running jobs get to finish at a stop."
)
@click.option("--queues", type=QueueNames(), metavar="NAME,...", help="Only these named queues. [default: all]")
@click.option("--drain", is_flag=True, help="End when the queue is empty.")
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="End after this many starts (each process).")
@click.option("--probe-port", type=click.IntRange(1, 65_535), metavar="PORT", help="Serve /ready and /live there.")
@project_options
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    threads: int,
    processes: int,
    grace: timedelta,
    probe_port: int | None,
    **options: Any,
) -> None:
    """Run jobs until told to stop.

    At SIGTERM or Ctrl-C it takes no more jobs, gives running ones the grace to finish, and puts the rest back into
    the queue with their attempt refunded. A second signal ends the wait. One line is logged per job; with --drain
    on a terminal there is a progress bar instead.
    """
    invocation: Invocation = ctx.obj
    options = {**options, "threads": threads, "grace": grace.total_seconds()}
    if processes > 1:
        if probe_port is not None:
            raise click.UsageError("--probe-port goes with one process: two cannot answer on one port")
        ctx.exit(_supervise(invocation, processes, options))
    from jfast_sync.worker.supervisor import LIFELINE, follow_supervisor

    alone = LIFELINE not in os.environ
    with open_app(invocation, threads=threads, prints=True) as app:
        bar = options["drain"] and alone and sys.stderr.isatty()
        configure_logs(app.config, invocation, quiet=bar)
        refuse_wrong_tables(app)
        running = app.worker(**options)
        follow_supervisor(running.stop)
        app.relaying.start()
        if not options["drain"]:
            app.start_scheduler()
        with ExitStack() as around:
            if probe_port is not None:
                around.enter_context(_probe(app, running, probe_port))
            if bar:
                around.enter_context(_progress(app, running))
            code = running.run()
        if running.abandoned_threads:
            # A thread that does not react would hold the interpreter's end, and the process its supervisor waits for.
            leave_at_once(code)
    ctx.exit(code)


def refuse_wrong_tables(app: JFast) -> None:
    """Stop where waiting would not help; a server that is away is waited for by the worker itself.

    Raises:
        SchemaError: the tables are missing in prod, or newer than this library.
    """
    from jfast_sync.errors import UnavailableError

    with suppress(UnavailableError):
        app.setup()


def configure_logs(config: Config, invocation: Invocation, *, quiet: bool) -> None:
    """Log as the configuration says; ``--debug`` logs everything, a progress bar leaves room for warnings only."""
    from jfast_sync.logs import configure

    level = "DEBUG" if invocation.debug else "WARNING" if quiet else config.observability.level
    configure(level, json_logs=config.logs_json, enabled=config.has("observability"))


def leave_at_once(code: int) -> None:
    """End the process without waiting for its threads."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _probe(app: JFast, running: Worker, port: int) -> Iterator[None]:
    from jfast_sync.health import Check
    from jfast_sync.web.probe import Probe
    from jfast_sync.web.readiness import Readiness

    readiness = Readiness(
        lambda: {**app.checks(), "worker": Check(running.health)},
        service=app.config.app.name,
        prod=app.config.app.env == "prod",
    )
    probe = Probe(readiness.answer, port)
    probe.start()
    try:
        yield
    finally:
        probe.stop()


@contextmanager
def _progress(app: JFast, running: Worker) -> Iterator[None]:
    """Draw a bar on stderr beside the worker, which has the main thread; the bar ends with what became of the jobs."""
    from jfast_sync.errors import UnavailableError
    from jfast_sync.loop import Deadline, Loop

    bar: Any = click.progressbar(length=1, label="Draining", show_pos=True, file=sys.stderr)

    def draw() -> float:
        counts = running.counts
        through = counts.done + counts.dead
        try:
            stats = app.queue.stats()
        except UnavailableError:
            return 1.0
        bar.length = max(through + stats.ready + stats.delayed + stats.running, 1)
        bar.update(through - bar.pos)
        return 0.2

    loop = Loop("jfast-progress", draw)
    with bar:
        loop.start()
        try:
            yield
        finally:
            loop.stop()
            loop.join(Deadline(1.0))
            bar.update(running.counts.done + running.counts.dead - bar.pos)
    counts = running.counts
    click.echo(f"{counts.done} done, {counts.failed} failed attempts, {counts.dead} dead letters.", err=True)


def _supervise(invocation: Invocation, processes: int, options: Mapping[str, Any]) -> int:
    """Keep worker processes running, each with this command's own options."""
    from jfast_sync.worker.supervisor import Supervisor

    config = read_config(invocation)  # what is wrong with it is said once, here
    configure_logs(config, invocation, quiet=False)
    return Supervisor(_child_command(invocation, options), processes, grace=options["grace"]).run()


def _child_command(invocation: Invocation, options: Mapping[str, Any]) -> list[str]:
    given = {
        "--config": invocation.config,
        "--app": invocation.app,
        "--threads": options["threads"],
        "--grace": options["grace"],
        "--queues": ",".join(sorted(options["queues"])) if options["queues"] else None,
        "--max-jobs": options["max_jobs"],
    }
    command = [sys.executable, "-m", "jfast_sync_cli", "worker"]
    command += [part for name, value in given.items() if value is not None for part in (name, str(value))]
    command += [part for module in invocation.imports for part in ("--import", module)]
    flags = {"--drain": options["drain"], "--debug": invocation.debug}
    return command + [name for name, wanted in flags.items() if wanted]
