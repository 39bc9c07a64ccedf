"""Many jobs out of JSON lines: every line is checked before the first job is stored."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from jfast_sync_cli.payloads import read_object

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.job import Job
    from jfast_sync_cli.order import Order

__all__ = ["enqueue_lines"]

_CHUNK = 1000  # jobs in one transaction
_IN_MEMORY = 8 * 1024 * 1024  # bytes of the standard input that are kept in memory; more goes to a temporary file


def enqueue_lines(app: JFast, order: Order, source: str, *, id_prefix: str | None, quiet: bool) -> int:
    """Store one job per line and return how many.

    Args:
        app: the app to enqueue with.
        order: what the jobs have in common.
        source: a file's path, or ``-`` for the standard input.
        id_prefix: makes the id of line 7 ``<prefix>-7``, so that the same command can be repeated.
        quiet: no progress bar.

    Raises:
        click.ClickException: a line cannot be a job (nothing was stored), or the server went away midway (says up
            to which line jobs are stored).
    """
    with _opened(source) as (file, name):
        try:
            total = sum(1 for _ in _jobs(app, order, file, name, id_prefix))
        except click.ClickException as exc:
            raise click.ClickException(f"{exc.message}; nothing was stored") from exc
        file.seek(0)
        prepared = _jobs(app, order, file, name, id_prefix)
        # The bar goes to stderr, and only where a person looks at it.
        with click.progressbar(
            length=total, label="Enqueuing", file=sys.stderr, hidden=quiet or not sys.stderr.isatty()
        ) as bar:
            stored, last = 0, 0
            while chunk := list(islice(prepared, _CHUNK)):
                _store(app, [job for _, job in chunk], name, stored, last, id_prefix)
                stored, last = stored + len(chunk), chunk[-1][0]
                bar.update(len(chunk))
    return stored


def _store(app: JFast, jobs: list[Job], name: str, stored: int, last: int, id_prefix: str | None) -> None:
    from jfast_sync.errors import JFastError

    try:
        app.queue.enqueue_many(jobs)
    except JFastError as exc:
        if not stored:
            raise
        again = (
            "The same command may be repeated: its ids are stored once"
            if id_prefix is not None
            else "With --id PREFIX every line gets an id of its own, and the command may be repeated"
        )
        raise type(exc)(
            f"{exc}\n{name}: the first {stored} jobs (to line {last}) are stored; the {len(jobs)} after them may be, "
            f"later ones are not. {again}."
        ) from exc


def _jobs(app: JFast, order: Order, file: IO[bytes], name: str, id_prefix: str | None) -> Iterator[tuple[int, Job]]:
    from jfast_sync.errors import PayloadError

    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        payload = read_object(line, place)
        try:
            job = app.queue.prepare(order.job(payload, None if id_prefix is None else f"{id_prefix}-{number}"))
        except PayloadError as exc:
            raise click.ClickException(f"{place}: {exc}") from exc
        yield number, job


@contextmanager
def _opened(source: str) -> Iterator[tuple[IO[bytes], str]]:
    """Open what can be read twice: the file itself, or a copy of the standard input or of a pipe."""
    try:
        with sys.stdin.buffer if source == "-" else Path(source).open("rb") as file:
            name = "standard input" if source == "-" else source
            if file.seekable() and source != "-":
                yield file, name
                return
            with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as copy:
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                yield copy, name
    except OSError as exc:
        raise click.ClickException(f"{source} cannot be read: {exc.strerror or exc}") from exc
