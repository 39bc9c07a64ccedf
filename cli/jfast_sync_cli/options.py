"""Options that several commands share, and the kinds of value they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from jfast_sync_cli.frame import Invocation, log_everything

__all__ = ["DURATION", "INSTANT", "SINCE", "common_options", "json_option", "project_options", "show_version"]

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.IGNORECASE)
_LONGEST = timedelta(days=3660)


class Duration(click.ParamType[timedelta]):
    """A length of time: a number of seconds, or parts such as ``90s``, ``1h30m``, ``2d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        length = parse_duration(value)
        if length is None:
            self.fail(f"{value!r} is not a duration; write seconds (90) or parts such as 90s, 1h30m, 2d", param, ctx)
        if length > _LONGEST:
            self.fail(f"{value!r} is longer than the {_LONGEST.days} days allowed", param, ctx)
        return length


class Instant(click.ParamType[datetime]):
    """A moment: ISO 8601 with its time zone, such as ``2026-03-01T08:00:00+01:00`` or ``...Z``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write it as 2026-03-01T08:00:00Z", param, ctx)
        if moment.utcoffset() is None:
            self.fail(f"{value!r} has no time zone; add Z for UTC, or an offset such as +01:00", param, ctx)
        try:
            return moment.astimezone(UTC)
        except OverflowError:
            self.fail(f"{value!r} is outside the calendar", param, ctx)


class Since(click.ParamType[datetime]):
    """A moment in the past: a duration ago (``2h``), or an instant."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if _PART.match(value) and parse_duration(value) is not None:
            return datetime.now(UTC) - DURATION.convert(value, param, ctx)
        return INSTANT.convert(value, param, ctx)


def parse_duration(text: str) -> timedelta | None:
    """Read a duration, or return None where ``text`` is none."""
    text = text.strip()
    if re.fullmatch(r"\d{1,12}(?:\.\d{1,9})?", text):
        return timedelta(seconds=float(text))
    if len(text) > 60 or not re.fullmatch(rf"(?:{_PART.pattern}\s*)+", text, re.IGNORECASE):
        return None
    seconds = sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(text))
    return timedelta(seconds=seconds) if seconds < timedelta.max.total_seconds() else None


DURATION = Duration()
INSTANT = Instant()
SINCE = Since()


def show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    """Print the installed version and stop."""
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"jfast-sync {version('jfast-sync')}")
        ctx.exit()


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        invocation = ctx.ensure_object(Invocation)
        if value:
            setattr(invocation, name, list(value) if isinstance(value, tuple) else value)
            if name == "debug":
                log_everything()

    return callback


def common_options(command: F) -> F:
    """Add ``--config`` and ``--debug``, which may stand before a command's name or after it."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_remember("debug"),
            help="Show where an error happened, and the library's log.",
        ),
        click.option(
            "--config",
            metavar="PATH",
            expose_value=False,
            callback=_remember("config"),
            help="The configuration file, or its folder. [default: ./jfast.toml]",
        ),
    ):
        command = option(command)
    return command


def project_options(command: F) -> F:
    """Add what a command needs that builds the app: the common options, ``--app`` and ``--import``."""
    for option in (
        click.option(
            "--import",
            multiple=True,
            metavar="MODULE",
            expose_value=False,
            callback=_remember("imports"),
            help="Import this module too, because it declares tasks. May be repeated.",
        ),
        click.option(
            "--app",
            metavar="MODULE:ATTR",
            expose_value=False,
            callback=_remember("app"),
            help="The app or its factory. [default: main:app or app:create_app if there, else jfast.toml]",
        ),
    ):
        command = option(command)
    return common_options(command)


def json_option(command: F) -> F:
    """Add ``--json``, given to the command as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON only.")(command)
