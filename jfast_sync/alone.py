"""The process in which a suspected job runs alone: ``python -m jfast_sync.alone FD``, started by the worker.

Reads one order from standard input, builds the same app, runs the job in the main thread, answers on the file
descriptor, and ends. Nothing of it claims or renews; the lease is the worker's.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from jfast_sync import adapters
from jfast_sync.app import JFast, load
from jfast_sync.errors import UnknownTaskError
from jfast_sync.job import Lease
from jfast_sync.observers import Observers
from jfast_sync.redact import error_text
from jfast_sync.source import Source
from jfast_sync.worker import WorkerOptions, wire
from jfast_sync.worker.execute import Executor
from jfast_sync.worker.transaction import Transactions

__all__ = ["main"]


def main() -> None:
    """Carry out the order on standard input."""
    answer_to = int(sys.argv[1])
    os.set_inheritable(answer_to, False)
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, name="jfast-lifeline", daemon=True).start()
    with os.fdopen(answer_to, "wb", buffering=0) as stream, suppress(BrokenPipeError):
        stream.write(json.dumps(_carry_out(order, stream)).encode())
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # threads that the handler left behind must not keep the process


def _carry_out(order: dict[str, Any], stream: IO[bytes]) -> dict[str, Any]:
    lease = wire.lease_from(order["lease"])
    try:
        app = _build(order, lease.job.task)
    except BaseException as exc:  # a module may even call sys.exit; the job is not to blame
        return {"not_built": error_text(exc)}
    stream.write(b"\n")  # the job starts now, and its timeout with it
    return _run(app, lease)


def _build(order: dict[str, Any], task: str) -> JFast:
    sys.path += [entry for entry in order["path"] if entry not in sys.path]
    source = Source.from_json(order["source"])
    app = load(
        source.target,
        config_path=source.config_path,
        imports=source.imports,
        overrides=source.overrides,
    )
    if app.tasks.find(task) is None and order["module"] == "__main__":
        runpy.run_path(order["main"], run_name="__jfast_alone__")
    elif app.tasks.find(task) is None and order["module"] is not None:
        import_module(order["module"])
    if order["module"] is not None and app.tasks.find(task) is None:
        raise UnknownTaskError(f"the app built for job task {task!r} in a process of its own does not declare it")
    return app


def _run(app: JFast, lease: Lease) -> dict[str, Any]:
    logging.getLogger("jfast_sync.worker").setLevel(logging.WARNING)  # the worker says how the job ended
    executor = Executor(
        app.tasks,
        Transactions(app.queue.backend, app.database),
        app,
        WorkerOptions(),
        observers=Observers(),  # the worker's are told
        policy=adapters.policy(app.config.queue),
        is_alone=True,
    )
    report = executor.execute(executor.begin(lease))
    return {"ended": wire.ended_to(report.ended), "skipped": report.skipped}


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
