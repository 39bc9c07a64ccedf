"""Names: who owns one, what is found under it, and what happens when two want it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.errors import DeclarationError, UnknownTaskError
from jfast_sync.tasks import TaskSession, task
from jfast_sync.tasks.registry import Registry, isolated


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with isolated():
        yield


def declare(name: str, **options: Any) -> Any:
    @task(name, **options)
    def handler(payload: dict) -> None: ...

    return handler


def test_finds_by_name_and_alias() -> None:
    new = declare("a.new", aliases=["a.old", "a.older"]).task
    registry = Registry()
    assert registry.find("a.new") is registry.get("a.older") is new
    assert registry.find("b") is None
    assert registry.names() == ["a.new"]
    assert registry.declared() == [new]
    assert registry.accepted() == {"a.new", "a.old", "a.older"}


def test_sees_what_is_declared_later() -> None:
    registry = Registry()
    declare("later")
    assert registry.names() == ["later"]


def test_an_unknown_task_names_the_nearest_first() -> None:
    for name in ["zebra", "invoice.send_email", *(f"other.{n}" for n in range(20))]:
        declare_separately(name)
    with pytest.raises(UnknownTaskError) as caught:
        Registry().get("invoice.sendemail")
    message = str(caught.value)
    assert message.startswith("unknown task 'invoice.sendemail'; known: invoice.send_email, other.0, ")
    assert message.endswith(" and 12 more")


def declare_separately(name: str) -> None:
    namespace: dict[str, Any] = {"task": task}
    exec(compile(f"@task({name!r})\ndef f(payload): ...", f"{name}.py", "exec"), namespace)


def test_an_unknown_task_where_none_is_declared() -> None:
    with pytest.raises(UnknownTaskError, match="no task is declared in this process"):
        Registry().get("x" * 100_000)


def test_one_name_for_two_functions_names_both_places() -> None:
    @task("invoice.send")
    def first(payload: dict) -> None: ...

    with pytest.raises(DeclarationError) as caught:

        @task("invoice.send")
        def second(payload: dict) -> None: ...

    message = str(caught.value)
    assert "second() claims the task name 'invoice.send', which is declared by " in message
    assert f"first() at {first.task.where}" in message
    assert message.startswith(f"{__file__}:")
    assert Registry().get("invoice.send") is first.task


def test_two_functions_of_one_name_in_one_file_are_two() -> None:
    @task("x")
    def same(payload: dict) -> None: ...

    with pytest.raises(DeclarationError, match="claims the task name 'x'"):

        @task("x")
        def same(payload: dict) -> None: ...  # a copy left behind


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("a", []), ("b", ["a"]), r"'a' as an alias, which is declared by"),
        (("a", ["old"]), ("old", []), r"'old', which is an alias of task 'a', declared by"),
        (("a", ["old"]), ("b", ["old"]), r"'old' as an alias, which is an alias of task 'a'"),
    ],
)
def test_aliases_are_names_too(first: Any, second: Any, message: str) -> None:
    declare(first[0], aliases=first[1])
    with pytest.raises(DeclarationError, match=message):
        declare(second[0], aliases=second[1])
    assert Registry().names() == ["a"]


def test_the_same_function_declared_again_replaces_it() -> None:
    first = declare("x", aliases=["old"])
    second = declare("x", aliases=["older"])
    assert first.task is not second.task
    registry = Registry()
    assert registry.get("x") is second.task
    assert registry.find("old") is None
    assert registry.find("older") is second.task


def test_a_reloaded_module_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "reloaded_tasks.py"
    source = "from jfast_sync.tasks import task\n@task('x')\ndef f(payload): return {}\n"
    file.write_text(source.format(1))
    module = importlib.import_module("reloaded_tasks")
    importlib.reload(module)
    file.write_text("# a line more\n" + source.format(2))
    importlib.reload(module)
    assert Registry().get("x").function({}) == 2
    del sys.modules["reloaded_tasks"]
    importlib.import_module("reloaded_tasks")
    assert Registry().names() == ["x"]
    monkeypatch.delitem(sys.modules, "reloaded_tasks")


def test_an_apps_own_tasks_are_its_own() -> None:
    one, two = Registry(), Registry()

    @one.task("own", queue="q")
    def own(payload: dict) -> None: ...

    assert one.get("own").queue == "q"
    assert two.find("own") is None
    shared = declare("shared")
    assert one.names() == ["own", "shared"]
    with pytest.raises(DeclarationError, match="claims the task name 'shared'"):

        @one.task("shared")
        def other(payload: dict) -> None: ...

    assert one.get("shared") is shared.task


def test_check_finds_a_name_that_a_module_took_later() -> None:
    registry = Registry()

    @registry.task("x")
    def own(payload: dict) -> None: ...

    declare("x")
    with pytest.raises(DeclarationError, match="claims the task name 'x'"):
        registry.check(database_configured=True)


def test_a_session_without_a_database_stops_the_start_with_the_fix() -> None:
    @task("plain")
    def plain(payload: dict) -> None: ...

    registry = Registry()
    registry.check(database_configured=False)

    @task("writes")
    def writes(payload: dict, session: TaskSession) -> None: ...

    declare("keyed", idempotent_on=lambda payload: payload["id"])
    registry.check(database_configured=True)
    with pytest.raises(DeclarationError) as caught:
        registry.check(database_configured=False)
    message = str(caught.value)
    assert f"{writes.task.where}: task 'writes' takes a TaskSession" in message
    assert "task 'keyed' has idempotent_on" in message
    assert "plain" not in message
    assert "[plugin.database] dsn" in message


def test_schedules() -> None:
    declare("report", every=timedelta(hours=1))
    registry = Registry()
    weekly = registry.schedule("report", cron="0 8 * * mon", name="report-weekly", payload={"span": "week"})
    assert weekly.where.startswith(f"{__file__}:")
    assert weekly.catch_up
    assert [made.name for made in registry.schedules()] == ["report", "report-weekly"]
    assert Registry().schedules()[0].every == timedelta(hours=1)


def test_a_second_schedule_needs_a_name_of_its_own() -> None:
    declare("report", every=timedelta(hours=1))
    registry = Registry()
    with pytest.raises(DeclarationError, match=r"a schedule called 'report' is declared at .* already"):
        registry.schedule("report", cron="@daily")
    registry.schedule("other", cron="@daily")
    with pytest.raises(DeclarationError, match="a schedule called 'other' is declared at"):
        registry.schedule("other", cron="@hourly")
    with pytest.raises(DeclarationError, match="needs every="):
        registry.schedule("third")


def test_isolated_restores_what_was_there() -> None:
    declare("outer")
    with isolated():
        assert Registry().names() == []
        declare("inner")
    assert Registry().names() == ["outer"]
