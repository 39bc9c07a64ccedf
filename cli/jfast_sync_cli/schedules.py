"""``jfast-sync schedules``: what recurs, when it will, and one run by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jfast_sync_cli.frame import Invocation, nearest
from jfast_sync_cli.options import common_options, json_option, project_options
from jfast_sync_cli.project import open_app
from jfast_sync_cli.show import age, iso, print_json, print_table
from jfast_sync_cli.zone_data import in_use

if TYPE_CHECKING:
    from jfast_sync.app import JFast
    from jfast_sync.tasks.spec import ScheduleDeclaration

__all__ = ["schedules"]

_LOCAL = "%a %Y-%m-%d %H:%M:%S %z"
_UTC = "%Y-%m-%d %H:%M:%SZ"
_EFFECTS = {
    "moved": "moved forward: this time of day is skipped by the clock",
    "first of two": "this time of day comes twice",
    "only first of two": "this time of day comes twice: only the first is a tick",
    "second of two": "this time of day for the second time",
}


class WallTime(click.ParamType[datetime]):
    """A moment, or a wall clock's time: ISO 8601 with or without an offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write it as 2026-03-01T08:00, or with Z for UTC", param, ctx)


WALL_TIME = WallTime()


@click.group()
@common_options
def schedules() -> None:
    """List schedules, preview their ticks, and run one by hand."""


@schedules.command("list")
@json_option
@project_options
@click.pass_obj
def list_schedules(invocation: Invocation, as_json: bool) -> None:
    """List the schedules.

    With each one's next tick, in its zone's time and in UTC, and the latest tick that was claimed.
    """
    with open_app(invocation) as app:
        declared = app.tasks.schedules()
        on = app.config.queue.scheduler
        now, latest = _asked(app, [schedule.name for schedule in declared])
        rows = [_row(app, schedule, now, latest.get(schedule.name), on=on) for schedule in declared]
        if as_json:
            print_json(rows)
            return
        if not rows:
            click.echo('No schedule is declared: give a task every=timedelta(...) or cron="...".')
            return
        headers = ("schedule", "task", "when", "zone", "next, local", "next, UTC", "last", "catch up", "state")
        print_table(headers, (_cells(row, now) for row in rows))
    if not on:
        click.echo("\nThe scheduler is off here: set [plugin.queue] scheduler = true.", err=True)


@schedules.command()
@click.argument("name")
@click.option("--from", "start", type=WALL_TIME, metavar="TIME", help="Ticks after this. [default: now]")
@click.option("--to", "end", type=WALL_TIME, metavar="TIME", help="Ticks up to this.")
@click.option("--limit", type=click.IntRange(1, 100_000), help="Show at most this many. [default: 10; with --to: 1000]")
@json_option
@project_options
@click.pass_obj
def preview(
    invocation: Invocation, name: str, start: datetime | None, end: datetime | None, limit: int | None, as_json: bool
) -> None:
    """Show the next ticks of a schedule.

    And which of them a change of the clock moves or repeats. TIME is like 2026-03-29T02:30, on the clock of the
    schedule's own zone; a date is its midnight. With Z or an offset it is an instant.
    """
    with open_app(invocation) as app:
        schedule = _find(app, name)
        after = _instant(schedule, start) if start is not None else datetime.now(UTC)
        end = _instant(schedule, end) if end is not None else None
        if end is not None and end < after:
            raise click.UsageError(f"--to ({iso(end)}) lies before --from ({iso(after)})")
        most = limit if limit is not None else 10 if end is None else 1000
        ticks = list(_ticks(schedule, after, end, most + 1))
        shown = [_tick(schedule, tick) for tick in ticks[:most]]
        if as_json:
            print_json(shown)
            return
        if not shown:
            click.echo("No tick in that time.")
            return
        rows = (
            (_local(schedule, at).strftime(_LOCAL), at.strftime(_UTC), _EFFECTS.get(tick["effect"], ""))
            for at, tick in zip(ticks, shown, strict=False)
        )
        print_table((f"local ({_zone(schedule)})", "UTC", ""), rows)
        if end is not None and len(ticks) > most:
            click.echo(f"... and more; --limit shows more than {most}.", err=True)


@schedules.command()
@click.argument("name")
@json_option
@project_options
@click.pass_obj
def run(invocation: Invocation, name: str, as_json: bool) -> None:
    """Queue a job of a schedule now.

    Prints the job's id. The schedule's ticks come as they would have.
    """
    from jfast_sync.scheduler import tick_job

    with open_app(invocation) as app:
        schedule = _find(app, name)
        if app.queue.backend.backend == "memory":
            raise click.ClickException(
                '[plugin.queue] backend = "memory" keeps jobs inside the process that runs them: a job of this '
                "command would be gone when it ends"
            )
        now = datetime.now(UTC)
        if not now.microsecond:
            now += timedelta(microseconds=1)  # never a tick's own instant: its idempotency key is not for this run
        job_id = app.queue.enqueue(tick_job(schedule, now, app.tasks, by_hand=True))
        if app.tasks.find(schedule.task) is None:
            click.echo(f"Task {schedule.task} is unknown here: the job waits for a worker that knows it.", err=True)
        if as_json:
            print_json({"id": job_id, "task": schedule.task, "schedule": schedule.name})
        else:
            click.echo(job_id)


def _instant(schedule: ScheduleDeclaration, moment: datetime) -> datetime:
    """Return a moment in UTC; one without an offset is on the schedule's wall clock."""
    if moment.utcoffset() is None:
        from jfast_sync.schedules.zones import zone

        moment = moment.replace(tzinfo=zone(_zone(schedule)))
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise click.UsageError(f"{moment} is outside the calendar") from None


def _find(app: JFast, name: str) -> ScheduleDeclaration:
    declared = {schedule.name: schedule for schedule in app.tasks.schedules()}
    if name not in declared:
        hint = nearest(name, list(declared)) if declared else "; this project declares no schedule"
        raise click.ClickException(f"there is no schedule {name!r} here{hint}")
    return declared[name]


def _asked(app: JFast, names: Sequence[str]) -> tuple[datetime, dict[str, datetime]]:
    """Ask the tick store for its time and the latest ticks; a store in memory is another process's."""
    from jfast_sync import adapters

    if app.config.tick_store == "memory" or not names or not _has_ticks(app):
        return datetime.now(UTC), {}
    store = adapters.tick_store(app.config, app.database)
    try:
        return store.now(), store.latest(names)
    finally:
        store.close()


def _has_ticks(app: JFast) -> bool:
    """Say whether the store has a place for ticks already; looking makes none."""
    database = app.database
    if database is None or app.config.tick_store != "database":
        return True
    if database.path is not None and not Path(database.path).exists():
        return False
    from jfast_sync.sql import schema

    return any(part.version for part in schema.status(database) if part.component == "jfast_schedule_ticks")


def _row(
    app: JFast, schedule: ScheduleDeclaration, now: datetime, last: datetime | None, *, on: bool
) -> dict[str, Any]:
    # After a claimed tick the next one is later than that, also where the clock was put back.
    following = schedule.recurrence().next(max(now, last) if last is not None else now)
    return {
        "name": schedule.name,
        "task": schedule.task,
        "every": schedule.every.total_seconds() if schedule.every is not None else None,
        "cron": schedule.cron,
        "timezone": _zone(schedule),
        "next": iso(following),
        "next_local": _local(schedule, following).isoformat(),
        "last": iso(last),
        "catch_up": schedule.catch_up,
        "jitter": schedule.jitter.total_seconds() if schedule.jitter is not None else None,
        "max_attempts": schedule.max_attempts,
        "payload": dict(schedule.payload),
        "scheduler": "on" if on else "off",
        "known": app.tasks.find(schedule.task) is not None,
        "where": schedule.where,
        "zone_data": str(in_use()) if schedule.timezone not in (None, "UTC") else None,
    }


def _cells(row: dict[str, Any], now: datetime) -> tuple[object, ...]:
    from jfast_sync.schedules import Every

    following = datetime.fromisoformat(row["next"])
    local = datetime.fromisoformat(row["next_local"])
    last = datetime.fromisoformat(row["last"]) if row["last"] is not None else None
    return (
        row["name"],
        row["task"] if row["known"] else f"{row['task']} (unknown here)",
        row["cron"] or str(Every(timedelta(seconds=row["every"]))),
        row["timezone"],
        local.strftime(_LOCAL),
        following.strftime(_UTC),
        age(last, now) if last is not None else "never",
        "yes" if row["catch_up"] else "no",
        row["scheduler"],
    )


def _ticks(schedule: ScheduleDeclaration, after: datetime, end: datetime | None, most: int) -> Iterator[datetime]:
    from jfast_sync.errors import ScheduleError

    with suppress(ScheduleError):  # the calendar ends with the year 9999
        for number, tick in enumerate(schedule.recurrence().next_many(after)):
            if number >= most or (end is not None and tick > end):
                return
            yield tick


def _tick(schedule: ScheduleDeclaration, tick: datetime) -> dict[str, Any]:
    from jfast_sync.schedules import Cron
    from jfast_sync.schedules.ticks import tick_id

    recurrence = schedule.recurrence()
    return {
        "utc": iso(tick),
        "local": _local(schedule, tick).isoformat(),
        "effect": recurrence.effect(tick) if isinstance(recurrence, Cron) else None,
        "job": tick_id(schedule.name, tick),
    }


def _zone(schedule: ScheduleDeclaration) -> str:
    return schedule.timezone or "UTC"


def _local(schedule: ScheduleDeclaration, tick: datetime) -> datetime:
    from jfast_sync.schedules import Cron

    recurrence = schedule.recurrence()
    return recurrence.local(tick) if isinstance(recurrence, Cron) else tick
