"""What waits in the queue, and what a test expects of it."""

from __future__ import annotations

from typing import Any, Final

from jfast_sync.core import JFast
from jfast_sync.job import Job
from jfast_sync.payload import encode
from jfast_sync.tasks.declare import TaskFunction

__all__ = ["assert_enqueued", "assert_not_enqueued", "enqueued"]

_ALL: Final = 100_000


def enqueued(jf: JFast, task: str | TaskFunction[..., Any] | None = None) -> list[Job]:
    """Return the jobs that wait, due or delayed, in the order they would be claimed; of one task, if it is named."""
    inspect = jf.queue.inspect
    name = _name(task) if task is not None else None
    return [row.job for state in ("ready", "delayed") for row in inspect.jobs(state=state, task=name, limit=_ALL)]


def assert_enqueued(
    jf: JFast, task: str | TaskFunction[..., Any], *, payload: Any = None, times: int = 1, **fields: Any
) -> Job:
    """Fail unless exactly ``times`` jobs of ``task`` wait that match; return the first of them.

    Args:
        jf: the app.
        task: its name, or the decorated function.
        payload: the whole payload, as it was given to ``enqueue``; any unless given.
        times: how many; at least 1. For none there is :func:`assert_not_enqueued`.
        fields: more of the job's fields that have to be equal: ``queue="mail"``, ``tenant_id="acme"``, ``priority=5``.

    Raises:
        AssertionError: other jobs wait; the message lists those of the task, or all.
    """
    if times < 1:
        raise ValueError(f"times must be 1 or more, got {times}; use assert_not_enqueued for none")
    found = _matching(jf, task, payload, fields)
    if len(found) == times:
        return found[0]
    raise AssertionError(
        f"expected {times} waiting {_described(task, payload, fields)}, found {len(found)}.\n{_waiting(jf, task)}"
    )


def assert_not_enqueued(
    jf: JFast, task: str | TaskFunction[..., Any] | None = None, *, payload: Any = None, **fields: Any
) -> None:
    """Fail if a job of ``task`` waits that matches, or any job at all where no task is named.

    Raises:
        AssertionError: there is one; the message lists what waits.
    """
    found = _matching(jf, task, payload, fields)
    if found:
        raise AssertionError(
            f"expected no waiting {_described(task, payload, fields)}, found {len(found)}.\n{_waiting(jf, task)}"
        )


def _matching(jf: JFast, task: str | TaskFunction[..., Any] | None, payload: Any, fields: dict[str, Any]) -> list[Job]:
    unknown = sorted(set(fields) - set(Job.__dataclass_fields__))
    if unknown:
        raise TypeError(f"a job has no {', '.join(unknown)}; it has {', '.join(Job.__dataclass_fields__)}")
    wanted = dict(fields)
    if payload is not None:
        wanted["payload"] = encode(payload, max_bytes=jf.config.queue.max_payload_bytes)
    return [job for job in enqueued(jf, task) if all(getattr(job, name) == value for name, value in wanted.items())]


def _name(task: str | TaskFunction[..., Any]) -> str:
    return task if isinstance(task, str) else task.task.name


def _described(task: str | TaskFunction[..., Any] | None, payload: Any, fields: dict[str, Any]) -> str:
    wanted = {"payload": payload} | fields if payload is not None else fields
    conditions = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
    jobs = f"jobs of {_name(task)!r}" if task is not None else "jobs"
    return f"{jobs} with {conditions}" if conditions else jobs


def _waiting(jf: JFast, task: str | TaskFunction[..., Any] | None) -> str:
    jobs = (enqueued(jf, task) if task is not None else []) or enqueued(jf)
    if not jobs:
        return "No job waits."
    lines = [f"  {job.task} {job.payload!r:.200} queue={job.queue!r} priority={job.priority}" for job in jobs[:20]]
    more = [f"  and {len(jobs) - 20} more"] if len(jobs) > 20 else []
    return "Waiting:\n" + "\n".join(lines + more)
