"""What `jobs` and `outbox` share: which dead ones are meant, and how a command says what became of them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import say_error
from jfast_sync_cli.show import print_json

__all__ = ["counted", "require_ids_or_all", "say_all", "say_ids"]


def require_ids_or_all(ids: Sequence[str], every: bool, filters: Sequence[object] = ()) -> None:
    """Refuse ids together with --all, filters without --all, and neither."""
    if every and ids:
        raise click.UsageError("give ids or --all, not both")
    if not every and any(value is not None for value in filters):
        raise click.UsageError("--task, --tenant and --since go with --all")
    if not every and not ids:
        raise click.UsageError("give ids, or --all")


def counted(number: int, noun: str) -> str:
    """Return "1 dead letter", "2 dead letters"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say_all(count: int, noun: str, done: str, as_json: bool, *, none: str) -> None:
    """Say what --all did; `none` is the sentence where there was nothing to do."""
    if as_json:
        print_json({"count": count})
    else:
        click.echo(f"{counted(count, noun)} {done}." if count else none)


def say_ids(
    ctx: click.Context, asked: Sequence[str], found: Sequence[str], noun: str, done: str, as_json: bool
) -> None:
    """Say what was done for single ids, and end with 1 naming those that are not there."""
    known = set(found)
    missing = [one for one in dict.fromkeys(asked) if one not in known]
    if as_json:
        print_json({done: list(found), "unknown": missing})
    elif found:
        click.echo(f"{counted(len(found), noun)} {done}.")
    if missing:
        say_error(f"no such {noun}: {', '.join(missing)}")
        ctx.exit(Exit.PROBLEMS)
