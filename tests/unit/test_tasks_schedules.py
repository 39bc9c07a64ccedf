"""Schedules as they are declared: beside the task, or apart from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jfast_sync.errors import DeclarationError, ScheduleError
from jfast_sync.tasks import task
from jfast_sync.tasks.declarations import isolated
from jfast_sync.tasks.registry import Registry

HERE = __file__


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with isolated():
        yield


def report() -> None: ...


def refusal(**options: Any) -> str:
    with pytest.raises(DeclarationError) as caught:
        task("report", **options)(report)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cron": "0 0 * * * *"}, "six fields"),
        ({"cron": "5/15 * * * *"}, "write 5-59/15"),
        ({"cron": "0 0 31 2 *"}, "never happen"),
        ({"cron": "0 3 * * *", "timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"every": timedelta(0)}, "one second or longer"),
        ({"every": timedelta(hours=1), "jitter": timedelta(days=2)}, "jitter must be a timedelta"),
        ({"every": timedelta(hours=1), "jitter": timedelta(-1)}, "jitter must be a timedelta"),
        ({"every": timedelta(hours=1), "jitter": 5}, "jitter must be a timedelta"),
        ({"jitter": timedelta(1)}, "jitter only make sense with every= or cron="),
        ({"cron": "0 3 * * *", "payload": {"scheduled_for": "x"}}, "gets scheduled_for from its tick"),
    ],
)
def test_a_refusal_names_the_place(options: dict[str, Any], reason: str) -> None:
    text = refusal(**options)
    assert reason in text
    assert text.startswith(f"{HERE}:")


def test_a_refused_expression_is_a_schedule_error() -> None:
    with pytest.raises(ScheduleError, match="schedule 'report': cron expression"):
        task("report", cron="@reboot")(report)
    with pytest.raises(ScheduleError, match=f"{HERE}:.*schedule 'weekly': cron expression"):
        Registry().schedule("report", cron="@reboot", name="weekly")


def test_a_declaration_knows_when_it_ticks() -> None:
    now = datetime(2026, 4, 4, tzinfo=UTC)
    made = Registry().schedule("report", cron="0 3 * * *", timezone="America/Mexico_City", jitter=timedelta(minutes=5))
    assert made.recurrence().next(now).isoformat() == "2026-04-04T09:00:00+00:00"
    assert made.jitter == timedelta(minutes=5)
    hourly = Registry().schedule("report", every=timedelta(hours=1), max_attempts=1)
    assert hourly.recurrence().next(now).isoformat() == "2026-04-04T01:00:00+00:00"
    assert hourly.max_attempts == 1


def test_one_task_has_several_schedules_under_names_of_their_own() -> None:
    task("report", cron="@daily")(report)
    registry = Registry()
    registry.schedule("report", cron="0 8 * * mon", name="report-weekly", payload={"days": 7})
    registry.schedule("report", cron="@monthly", name="report-monthly")
    assert [made.name for made in registry.schedules()] == ["report", "report-monthly", "report-weekly"]
    assert {made.task for made in registry.schedules()} == {"report"}


def test_one_task_twice_without_a_name_is_refused() -> None:
    task("report", cron="@daily")(report)
    registry = Registry()
    with pytest.raises(DeclarationError, match=r"'report' is declared at .* already; give this one a name"):
        registry.schedule("report", cron="@weekly")
    registry.schedule("other", cron="@weekly")
    with pytest.raises(DeclarationError, match="'other' is declared at"):
        registry.schedule("other", cron="@hourly")


def test_one_line_that_declares_different_schedules_needs_names_too() -> None:
    registry = Registry()
    with pytest.raises(DeclarationError, match="'report' is declared at"):
        for expression in ("@daily", "@weekly"):
            registry.schedule("report", cron=expression)
    for _ in range(2):
        registry.schedule("same", cron="@daily")
    assert [made.name for made in registry.schedules()] == ["report", "same"]


def test_a_module_that_takes_an_apps_name_later_stops_the_start() -> None:
    registry = Registry()
    registry.schedule("report", cron="@weekly")
    task("report", cron="@daily")(report)
    with pytest.raises(DeclarationError, match="'report' is declared at"):
        registry.check(database_configured=True)


@dataclass
class Span:
    days: int


def test_the_payload_must_fit_the_handler() -> None:
    def handler(span: Span) -> None: ...

    task("report", max_attempts=2)(handler)
    with pytest.raises(DeclarationError, match=r"a tick's payload\.days: missing"):
        Registry().schedule("report", cron="@daily")
    assert Registry().schedule("report", cron="@daily", payload={"days": 1}).payload == {"days": 1}


@pytest.mark.parametrize("name", ["", " report", "x" * 300, 5])
def test_the_task_of_a_schedule_has_a_name(name: Any) -> None:
    with pytest.raises(DeclarationError, match=f"{HERE}:.*a task's name"):
        Registry().schedule(name, cron="@daily")
    with pytest.raises(DeclarationError, match=f"{HERE}:.*a schedule's name"):
        Registry().schedule("report", cron="@daily", name=name)


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3"])
def test_attempts_of_a_schedule_are_counted_from_one(attempts: Any) -> None:
    with pytest.raises(DeclarationError, match="max_attempts must be a whole number"):
        Registry().schedule("report", cron="@daily", max_attempts=attempts)


def test_a_second_decorator_does_not_take_the_firsts_schedule_away() -> None:
    with pytest.raises(DeclarationError) as caught:

        @task("report", cron="0 3 * * *")
        @task("report", cron="0 4 * * *")
        def stacked() -> None: ...

    said = str(caught.value)
    upper, lower = (int(place) for place in re.findall(re.escape(HERE) + r":(\d+)", said))
    assert lower == upper + 1
    assert "with 0 4 * * * (UTC)" in said
    assert "tasks.schedule('report', ..., name=\"...\")" in said


def test_declaring_a_function_once_more_does_not_take_its_schedule_away() -> None:
    for _ in range(2):
        task("weekly", cron="@weekly")(report)  # the very same is no other, whatever its line
    with pytest.raises(DeclarationError, match=r"'weekly'\) is on report\(\) already"):
        task("weekly")(report)
    assert [made.name for made in Registry().schedules()] == ["weekly"]
