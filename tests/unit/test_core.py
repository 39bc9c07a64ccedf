"""What an app refuses at once, and what it gives."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from jfast_sync import JFast, Job
from jfast_sync.config import load_config
from jfast_sync.errors import ConfigError, NotProvidedError, PayloadError
from jfast_sync.tasks.registry import Registry


@pytest.fixture
def app() -> Iterator[JFast]:
    config = load_config(environ={}, overrides={"queue": {"backend": "memory"}})
    with JFast(config, tasks=Registry()) as app:
        yield app


@pytest.mark.parametrize("name", ["database", "queue", "tasks", "outbox", "events"])
def test_the_apps_own_names_cannot_be_provided_over(app: JFast, name: str) -> None:
    with pytest.raises(ConfigError, match="the app's own; choose another"):
        app.provide(name, object())


def test_a_factory_is_called_once_when_first_required(app: JFast) -> None:
    made: list[object] = []

    def factory() -> object:
        made.append(object())
        return made[-1]

    app.provide("mailer", factory)
    assert not made
    assert app.require("mailer") is app.require("mailer")
    assert len(made) == 1


def test_something_absent_names_the_line_to_add(app: JFast) -> None:
    with pytest.raises(NotProvidedError, match=r"add jfast\.provide\('mailer', \.\.\.\)"):
        app.require("mailer")


@pytest.mark.parametrize("register", ["on_start", "on_success", "on_failure", "on_dead"])
def test_an_observer_that_cannot_be_called_is_refused(app: JFast, register: str) -> None:
    add: Callable[[Any], Any] = getattr(app, register)
    with pytest.raises(ConfigError, match="give a function that takes the event"):
        add(5)


def test_what_is_no_job_and_no_session_is_said(app: JFast) -> None:
    with pytest.raises(TypeError, match="expected a Job, got 'mail'"):
        app.queue.enqueue(cast("Job", "mail"))
    with pytest.raises(TypeError, match="expected a SQLAlchemy session"):
        app.outbox.enqueue(cast("Any", None), Job(task="mail"))


@pytest.mark.parametrize("queue", ["a,b", "a b", "", ",", "a\nb"])
def test_a_queue_that_no_worker_could_name_is_refused(queue: str) -> None:
    with pytest.raises(PayloadError, match="queue"):
        Job(task="mail", queue=queue)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "TypeError"), (lambda config: object(), "is not a queue"), (lambda config: 1 / 0, "ZeroDivisionError")],
)
def test_a_backend_of_ones_own_that_cannot_be_one(monkeypatch: pytest.MonkeyPatch, value: object, said: str) -> None:
    module = types.ModuleType("own_backend")
    module.__dict__["make"] = value
    monkeypatch.setitem(sys.modules, "own_backend", module)
    config = load_config(environ={}, overrides={"queue": {"backend": "own_backend:make"}})
    with pytest.raises(ConfigError, match=said):
        JFast(config, tasks=Registry())
