"""A job that runs alone in a process of its own, because its earlier starts took their workers' leases with them.

Only a child that dies makes the job a dead letter: the lapses before were a suspicion, and may have been a
neighbour's fault or an outage. The child gets its order on standard input, which it also watches: when that closes,
its parent is gone, and it ends too. It answers on a pipe of its own, so that handlers may print.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

from jfast_sync.backoff import backoff
from jfast_sync.outcome import Bury, Retry
from jfast_sync.worker import wire
from jfast_sync.worker.attempt import Attempt, Ended

__all__ = ["ChildLauncher", "ChildProcess", "death"]

log = logging.getLogger("jfast_sync.worker")

_PROGRAM: Final = "jfast_sync.alone"
_LOOK_EVERY: Final = 0.05
_BOOT: Final = 60.0  # seconds to build the app, on top of the job's own timeout
_AGAIN_BASE, _AGAIN_CAP = 2.0, 60.0


class ChildLauncher(Protocol):
    """Starts such processes."""

    def can_run(self, attempt: Attempt) -> bool:
        """Say whether a child could find the attempt's task."""
        ...

    def run(self, attempt: Attempt) -> tuple[Ended, bool]:
        """Run the attempt's job in a new process and wait for its end; return it, and whether it was skipped."""
        ...


class ChildProcess:
    """Runs jobs with ``python -m jfast_sync.alone``, in this process's folder and environment.

    Args:
        source: how to build the app again, as :meth:`jfast_sync.source.Source.to_json` gives it.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    def can_run(self, attempt: Attempt) -> bool:
        """A task declared in the program itself can be found only where the program may be run again for it."""
        module = attempt.task.function.__module__ if attempt.task is not None else ""
        return module != "__main__" or _guarded_main() is not None

    def run(self, attempt: Attempt) -> tuple[Ended, bool]:
        """Run the attempt's job in a new process and wait for its end."""
        reading, writing = os.pipe()
        try:
            command = [sys.executable, "-m", _PROGRAM, str(writing)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(writing,), start_new_session=True)  # noqa: S603
        except OSError as exc:
            os.close(reading)
            return _put_off(attempt, f"no process could be started: {exc}"), False
        finally:
            os.close(writing)
        with process, os.fdopen(reading, "rb", buffering=0) as answer:
            attempt.restart_clock(_BOOT)
            attempt.attach(_Killable(process))
            if attempt.stop is not None:
                process.kill()
            with suppress(BrokenPipeError):
                _send(process.stdin, self._order(attempt))
            text = _read(answer, process, attempt.restart_clock)
            process.wait()
            attempt.detach()
        return self._judge(attempt, text, process.returncode)

    def _order(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "source": self._source,
            "lease": wire.lease_to(attempt.lease),
            "path": sys.path,
            "module": attempt.task.function.__module__ if attempt.task is not None else None,
            "main": _guarded_main(),
        }

    def _judge(self, attempt: Attempt, text: bytes, code: int) -> tuple[Ended, bool]:
        try:
            answer = json.loads(text) if text.strip() else None
        except ValueError:
            answer = None  # it died while it wrote
        if answer is None:
            if attempt.stop is not None:
                return attempt.verdict(ChildProcessError(death(code))), False
            if not text:  # it never came to the job: a deploy that is half done, a module that ends the process
                return _put_off(attempt, f"the process for it ended before the job started: {death(code)}"), False
            return Bury(f"worker died: {death(code)}"), False
        if "not_built" in answer:
            return _put_off(attempt, answer["not_built"]), False
        # Whatever it was told meanwhile: a child that answers has not been stopped.
        return wire.ended_from(answer["ended"]), bool(answer["skipped"])


def _put_off(attempt: Attempt, error: str) -> Retry | Bury:
    """Try again, in growing pauses and uncounted, for as long as a job may snooze: no fault of the job's."""
    lease = attempt.lease
    log.error("job %s could not be started in a process of its own: %s", lease.job.id, error)
    age = lease.claimed_at - (lease.snoozed_since or lease.claimed_at)
    if age >= attempt.policy.snooze_max_age:
        return Bury(f"not started in a process of its own for {age}: {error}")
    pause = min(max(age.total_seconds(), _AGAIN_BASE), _AGAIN_CAP)
    return Retry(backoff(1, base=pause, cap=pause, jitter=0.3), error=error, refund=True, snooze=True)


class _Killable:
    """A child process, as what an attempt is broken off with."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def cancel(self) -> None:
        self._process.terminate()

    def terminate(self) -> None:
        self._process.kill()


def _send(stream: IO[bytes] | None, order: dict[str, Any]) -> None:
    assert stream is not None
    stream.write(json.dumps(order).encode() + b"\n")
    stream.flush()  # and stays open: its end tells the child that this process is gone


def _read(answer: IO[bytes], process: subprocess.Popen[bytes], on_start: Callable[[], None]) -> bytes:
    """Read what the child answers, up to its end: a grandchild may hold the pipe open for longer.

    The first byte says that the app is built and the job starts.
    """
    parts: list[bytes] = []
    while True:
        ended = process.poll() is not None
        while select.select([answer], [], [], 0 if ended else _LOOK_EVERY)[0]:
            part = answer.read(65536)
            if not part:
                return b"".join(parts)
            if not parts:
                on_start()
            parts.append(part)
        if ended:
            return b"".join(parts)


def death(code: int) -> str:
    """Say how a process ended, from its return code."""
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _guarded_main() -> str | None:
    """Return the program's file if it may be run again for its declarations: its work stands under a __main__ guard."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return None
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    guarded = any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in body)
    return str(Path(file).resolve()) if guarded else None
