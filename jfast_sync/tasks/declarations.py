"""What ``@task`` has declared, by name; the process-wide set that modules fill when they are imported."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from jfast_sync.errors import DeclarationError
from jfast_sync.tasks.spec import ScheduleDeclaration, Task

__all__ = ["Declarations", "declarations", "isolated"]


class Declarations:
    """Tasks by name and alias, and schedules by name, each declared by one place only. Safe from any thread.

    ``revision`` counts the changes to the schedules, so that whoever runs them sees that there are others now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._by_name: dict[str, Task] = {}  # aliases included
        self._schedules: dict[str, ScheduleDeclaration] = {}
        self.revision = 0

    def add(self, task: Task) -> None:
        """Add a task, or replace it when the same function is declared again (a module reloaded).

        Raises:
            DeclarationError: its name, an alias or its schedule's name is another's, or the function has a schedule
                already; the message names both places.
        """
        with self._lock:
            self.check_free(task)
            self._check_one_schedule(task)
            if task.schedule is not None:
                self._check_schedule(task.schedule, replacing=task.name)
            self._forget(task.name)
            self._tasks[task.name] = task
            self._by_name |= dict.fromkeys((task.name, *task.aliases), task)
            if task.schedule is not None:
                self._keep_schedule(task.schedule)

    def check_free(self, task: Task) -> None:
        """Raise DeclarationError where another function has the task's name or one of its aliases."""
        for name in (task.name, *task.aliases):
            other = self._by_name.get(name)
            if other is not None and not _same_function(task, other):
                raise DeclarationError(_taken(name, task, other))

    def add_schedule(self, schedule: ScheduleDeclaration) -> None:
        """Add a schedule that stands apart from its task's declaration.

        Raises:
            DeclarationError: its name is taken by another place.
        """
        with self._lock:
            self.check_schedule_free(schedule)
            self._keep_schedule(schedule)

    def check_schedule_free(self, schedule: ScheduleDeclaration) -> None:
        """Raise DeclarationError where another schedule has the name; the very same one, once more, is no other."""
        other = self._schedules.get(schedule.name)
        if other is not None and other != schedule:
            raise DeclarationError(_schedule_taken(schedule, other))

    def find(self, name: str) -> Task | None:
        return self._by_name.get(name)

    def tasks(self) -> list[Task]:
        with self._lock:
            return list(self._tasks.values())

    def schedules(self) -> list[ScheduleDeclaration]:
        with self._lock:
            return list(self._schedules.values())

    def _check_one_schedule(self, task: Task) -> None:
        """Refuse a second @task on one function object, which no reload makes, where a schedule would be lost by it."""
        old = self._tasks.get(task.name)
        if old is None or old.schedule is None or old.schedule == task.schedule:
            return
        if inspect.unwrap(old.function) is inspect.unwrap(task.function):
            raise DeclarationError(_one_schedule(task, old.schedule))

    def _check_schedule(self, schedule: ScheduleDeclaration, replacing: str | None = None) -> None:
        other = self._schedules.get(schedule.name)
        if other is None or other.where == schedule.where or (replacing is not None and other.task == replacing):
            return
        raise DeclarationError(_schedule_taken(schedule, other))

    def _keep_schedule(self, schedule: ScheduleDeclaration) -> None:
        self._schedules[schedule.name] = schedule
        self.revision += 1

    def _forget(self, name: str) -> None:
        old = self._tasks.pop(name, None)
        if old is None:
            return
        for key in (old.name, *old.aliases):
            self._by_name.pop(key, None)
        if old.schedule is not None:
            self._schedules.pop(old.schedule.name, None)
            self.revision += 1


def _same_function(new: Task, old: Task) -> bool:
    """Say whether ``new`` is ``old`` declared once more: the module was reloaded, or imported under a second name.

    Two functions of one name in one file look the same but for their lines - and so does a function that moved
    between two executions of its file, which gives itself away by another module spec.
    """
    if new.name != old.name or _qualname(new) != _qualname(old):
        return False
    if new.where == old.where:
        return True
    executed_again = new.execution is not old.execution or new.where.startswith("<")
    return new.function.__module__ == old.function.__module__ and executed_again


def _qualname(task: Task) -> str:
    return getattr(task.function, "__qualname__", "")


def _taken(name: str, new: Task, old: Task) -> str:
    as_alias = " as an alias" if name != new.name else ""
    held = f"an alias of task {old.name!r}, declared" if name != old.name else "declared"
    return (
        f"{new.where}: {_qualname(new)}() claims the task name {name!r}{as_alias}, which is {held} by "
        f"{_qualname(old)}() at {old.where}; a name belongs to one function"
    )


def _schedule_taken(new: ScheduleDeclaration, old: ScheduleDeclaration) -> str:
    return (
        f"{new.where}: a schedule called {new.name!r} is declared at {old.where} already; "
        'give this one a name of its own: name="..."'
    )


def _one_schedule(task: Task, old: ScheduleDeclaration) -> str:
    place = task.schedule.where if task.schedule is not None else task.where
    return (
        f"{place}: @task({task.name!r}) is on {_qualname(task)}() already, with {old.recurrence()} at {old.where}; one "
        f'@task holds one schedule: declare the other by tasks.schedule({task.name!r}, ..., name="...")'
    )


_current = Declarations()


def declarations() -> Declarations:
    """Return the process-wide declarations that module-level ``@task`` adds to."""
    return _current


@contextmanager
def isolated() -> Iterator[Declarations]:
    """Start from no declarations inside the block and restore what was declared before afterwards; for tests.

    A project's ``modules`` package is forgotten at both ends too, so that another project can be imported, or the same
    one again. Not per thread: the whole process sees the fresh set.
    """
    global _current  # noqa: PLW0603 - the process-wide set is what the name stands for
    before, _current = _current, Declarations()
    path, project = list(sys.path), _take_project()
    try:
        yield _current
    finally:
        _current = before
        _take_project()
        sys.path[:] = path
        sys.modules.update(project)


def _take_project() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == "modules" or name.startswith("modules.")]
    return {name: sys.modules.pop(name) for name in names}
