"""A process that has the library imported and forks for every command: a fresh process without its 0.4 s of imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["call"]

# What a command imports in any case. Nothing that declares a task: that would be there in every project.
_COMMANDS = ("main", "jobs", "enqueue", "order", "stats", "worker", "checks")
_LIBRARY = ("jfast_sync.app", "jfast_sync.queues.sql", "jfast_sync.worker", "psycopg")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", __name__, *_LIBRARY, *(f"jfast_sync_cli.{name}" for name in _COMMANDS)])


def call(
    arguments: Sequence[str], folder: Path, environ: dict[str, str], *, text: str = "", timeout: float = 60
) -> tuple[int, str, str]:
    """Run `jfast-sync` with these arguments in a process of its own; return its exit code, output and errors."""
    with tempfile.TemporaryDirectory(prefix="jfast-test-") as files:
        streams = [Path(files, name) for name in ("in", "out", "err")]
        streams[0].write_text(text)
        process = _context.Process(target=_child, args=(list(arguments), folder, environ, streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"jfast-sync {' '.join(arguments)} did not end: {streams[2].read_text()}")
        code, out, err = process.exitcode, streams[1].read_text(), streams[2].read_text()
        process.close()
        return code, out, err


def _child(arguments: list[str], folder: Path, environ: dict[str, str], streams: Sequence[Path]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    tempfile.tempdir = None
    from jfast_sync_cli.main import main

    main(arguments)
