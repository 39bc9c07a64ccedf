"""The names an application may import, and what importing them costs."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

PUBLIC = {
    "jfast_sync": [
        "JFast",
        "JFastError",
        "Job",
        "connect",
        "current_job",
        "current_request_id",
        "current_tenant_id",
        "get_context",
    ],
    "jfast_sync.errors": [
        "ConfigError",
        "DeclarationError",
        "JFastError",
        "LeaseLostError",
        "MissingDriverError",
        "NotInJobError",
        "NotProvidedError",
        "PayloadError",
        "ScheduleError",
        "SchemaError",
        "UnavailableError",
        "UndeliverableEvent",
        "UnknownTaskError",
        "UnsupportedError",
    ],
    "jfast_sync.flask": ["JFast", "get_session"],
    "jfast_sync.outbox": ["claim_once"],
    "jfast_sync.schedules": ["Cron", "Every"],
    "jfast_sync.tasks": ["Cancel", "Retry", "Snooze", "TaskContext", "TaskSession", "task"],
    "jfast_sync.testing": [
        "Drained",
        "FakeClock",
        "assert_enqueued",
        "assert_not_enqueued",
        "drain",
        "enqueued",
        "inline",
        "memory_app",
        "sqlite_app",
    ],
}

#: What need not be installed, or is loaded by who uses it.
LOADED_LATER = ["psycopg", "redis", "pika", "kafka", "opentelemetry", "sqlalchemy", "flask", "click", "croniter"]


def modules() -> list[ModuleType]:
    return [importlib.import_module(name) for name in PUBLIC]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_names_are_these(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == PUBLIC[name]
    assert module.__all__ == sorted(module.__all__)
    assert [public for public in PUBLIC[name] if not hasattr(module, public)] == []


def test_a_name_that_is_not_there_is_an_ordinary_attribute_error() -> None:
    outbox: Any = importlib.import_module("jfast_sync.outbox")
    with pytest.raises(AttributeError, match=r"module 'jfast_sync\.outbox' has no attribute 'claim_twice'"):
        outbox.claim_twice  # noqa: B018


def described() -> dict[str, str | None]:
    """Every public class and function, and the public methods and properties of the classes, with their docstrings."""
    found: dict[str, str | None] = {}
    for module in modules():
        for name in PUBLIC[module.__name__]:
            thing = getattr(module, name)
            found[f"{module.__name__}.{name}"] = thing.__doc__
            members = vars(thing).items() if inspect.isclass(thing) else ()
            for member, value in members:
                if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    found[f"{module.__name__}.{name}.{member}"] = value.__doc__
    return found


def test_everything_public_says_what_it_is_in_one_sentence() -> None:
    silent = [name for name, text in described().items() if not text]
    assert silent == []
    first = {name: inspect.cleandoc(text).splitlines()[0] for name, text in described().items() if text}
    assert {name: line for name, line in first.items() if not line.endswith(".")} == {}
    # A second sentence belongs below a blank line.
    assert {name: line for name, line in first.items() if re.search(r"[.!?] +[A-Z]", line)} == {}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_no_driver() -> None:
    names = "jfast_sync, jfast_sync.tasks, jfast_sync.outbox, jfast_sync.errors"
    assert run(f"import sys, {names}; print([name for name in {LOADED_LATER} if name in sys.modules])") == "[]"


@pytest.mark.timed
def test_importing_is_quick() -> None:
    seconds = "import time; before = time.process_time(); import jfast_sync; print(time.process_time() - before)"
    assert min(float(run(seconds)) for _ in range(3)) < 0.3  # CPU; the least of three, since others may be busy
