"""The tasks one app knows: those that modules declared, and its own."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Unpack

from jfast_sync.context import current_app
from jfast_sync.errors import DeclarationError, UnknownTaskError
from jfast_sync.tasks.declarations import Declarations, declarations, isolated
from jfast_sync.tasks.declare import TaskDecorator, TaskOptions, task
from jfast_sync.tasks.options import check_tick_payload, schedule_of, task_name
from jfast_sync.tasks.spec import ScheduleDeclaration, Task

__all__ = ["Registry", "isolated"]

_SHOWN: Final = 10


class Registry:
    """What ``jf.tasks`` and ``ctx.require("tasks")`` answer.

    Args:
        shared: the process-wide declarations to know besides its own; those of now unless given.
        app: gives the app that ``.enqueue`` of its own tasks goes to; the current one unless given.

    ``on_schedule`` is called after each :meth:`schedule`: a scheduler that runs already shall not sleep over it.
    """

    def __init__(self, shared: Declarations | None = None, *, app: Callable[[], Any] = current_app) -> None:
        self._shared = shared if shared is not None else declarations()
        self._own = Declarations()
        self._app = app
        self.on_schedule: Callable[[], None] = lambda: None

    def task(self, name: str, **options: Unpack[TaskOptions]) -> TaskDecorator:
        """Declare a task that only this app knows; the options are those of :func:`jfast_sync.tasks.task`.

        Raises:
            DeclarationError: the declaration cannot work, or the name is taken.
        """
        return task(name, **options).into(self._own, self._shared, self._app)

    def schedule(
        self,
        task: str,
        *,
        every: timedelta | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        catch_up: bool | None = None,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        jitter: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> ScheduleDeclaration:
        """Let a task recur: ``tasks.schedule("report", cron="0 8 * * mon", name="report-weekly")``.

        A scheduler that runs in this process already begins with it at once.

        Args:
            task: the task's name; it may be declared later.
            every, cron: one of the two.
            timezone: of ``cron``; UTC unless given.
            catch_up: whether a tick missed while nothing ran is made up for; yes unless given.
            name: the schedule's, for a task with several; the task's name unless given.
            payload: of every tick's job; ``scheduled_for`` is added.
            jitter: start a tick's job up to this much later than its tick, to spread the load.
            max_attempts: of every tick's job; the task's unless given.

        Raises:
            DeclarationError: the options contradict each other, the name is taken, or the payload does not fit the
                task's dataclass or TypedDict.
            ScheduleError: the expression, the zone or the interval is refused.
        """
        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        made = schedule_of(
            where,
            task_name(task, where),
            name=name,
            every=every,
            cron=cron,
            timezone=timezone,
            catch_up=catch_up,
            payload=payload,
            jitter=jitter,
            max_attempts=max_attempts,
        )
        if made is None:
            raise DeclarationError(f'{where}: the schedule of {task!r} needs every=timedelta(...) or cron="..."')
        self._shared.check_schedule_free(made)
        found = self.find(task)
        check_tick_payload(made, found.payload_type if found is not None else None)
        self._own.add_schedule(made)
        self.on_schedule()
        return made

    def find(self, name: str) -> Task | None:
        """Return the task of this name or alias, or None."""
        return self._own.find(name) or self._shared.find(name)

    def get(self, name: str) -> Task:
        """Return the task of this name or alias.

        Raises:
            UnknownTaskError: nobody declared it; the message names the known tasks, the nearest first.
        """
        found = self.find(name)
        if found is None:
            raise UnknownTaskError(f"unknown task {name!r:.200}; {_known(name, self.names())}")
        return found

    def names(self) -> list[str]:
        """Return the names of all tasks, sorted, without aliases."""
        return sorted(known.name for known in self.declared())

    def declared(self) -> list[Task]:
        """Return all tasks, sorted by name."""
        both = {known.name: known for known in (*self._shared.tasks(), *self._own.tasks())}
        return [both[name] for name in sorted(both)]

    def subscribers(self, event_type: str) -> list[Task]:
        """Return the tasks that react to events of a type, sorted by name."""
        return [known for known in self.declared() if known.subscribes_to == event_type]

    def accepted(self) -> frozenset[str]:
        """Return every name a job may carry to run here: names and aliases."""
        return frozenset(name for known in self.declared() for name in (known.name, *known.aliases))

    def schedules(self) -> list[ScheduleDeclaration]:
        """Return all schedules, sorted by name."""
        return sorted((*self._shared.schedules(), *self._own.schedules()), key=lambda made: made.name)

    @property
    def revision(self) -> int:
        """A number that grows whenever :meth:`schedules` changes."""
        return self._shared.revision + self._own.revision

    def check(self, *, database_configured: bool) -> None:
        """Stop the start where a task cannot work with this configuration.

        Raises:
            DeclarationError: a task takes a session or has ``idempotent_on``, and there is no database; or a module
                has declared a name since that this app's own task or schedule has.
        """
        for known in self._own.tasks():
            self._shared.check_free(known)
        for schedule in self._own.schedules():
            self._shared.check_schedule_free(schedule)
        lacking = [known for known in self.declared() if known.needs_database]
        if database_configured or not lacking:
            return
        lines = [f"  {known.where}: task {known.name!r} {_need(known)}" for known in lacking]
        raise DeclarationError(
            "no database is configured, but these tasks need one:\n" + "\n".join(lines) + "\n"
            'put "database" into [plugins] enabled and set [plugin.database] dsn (or JFAST_DB_DSN), or take the '
            "TaskSession and idempotent_on out of them"
        )


def _need(known: Task) -> str:
    return "takes a TaskSession" if known.takes_session else "has idempotent_on, whose keys are kept in the database"


def _known(name: str, names: list[str]) -> str:
    if not names:
        return (
            "no task is declared in this process: is modules/<module>/tasks.py there, or its module named in "
            "[plugin.queue] imports?"
        )
    nearest = difflib.get_close_matches(name[:255], names, n=3, cutoff=0.5)
    ordered = [*nearest, *(other for other in names if other not in nearest)]
    hidden = len(ordered) - _SHOWN
    more = f" and {hidden} more" if hidden > 0 else ""
    return f"known: {', '.join(ordered[:_SHOWN])}{more}"
