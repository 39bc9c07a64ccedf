"""``jfast-sync outbox``: what waits to be sent, and what was given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from jfast_sync_cli.dead import counted, require_ids_or_all, say_all, say_ids
from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import common_options, json_option, project_options
from jfast_sync_cli.project import open_app
from jfast_sync_cli.show import age, indented, print_json

if TYPE_CHECKING:
    from jfast_sync.core import JFast
    from jfast_sync.outbox.rows import DeadMessage
    from jfast_sync.outbox.table import OutboxTable

__all__ = ["outbox"]

_NOUN: Final = "dead message"
_NONE: Final = "No dead messages."


@click.group()
@common_options
def outbox() -> None:
    """Show what waits to be sent; list, retry and discard what was given up."""


@outbox.command()
@json_option
@project_options
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Count messages by state; exits with 1 when some cannot be sent or are dead."""
    with open_app(ctx.obj) as app:
        stats = _messages(app).stats()
        health = app.checks()["outbox"]()
    if as_json:
        print_json(
            {
                "pending": stats.pending,
                "failing": stats.failing,
                "dead": stats.dead,
                "published": stats.published,
                "oldest_pending_seconds": stats.oldest_pending_seconds,
                "last_error": stats.last_error,
                "status": health.status,
                "detail": health.detail,
            }
        )
    else:
        for name in ("pending", "failing", "dead", "published"):
            count = getattr(stats, name)
            click.echo(f"{name:<10} {count}{'+' if count >= stats.cap else ''}")
        if stats.oldest_pending_seconds is not None:
            click.echo(f"oldest     {stats.oldest_pending_seconds:.0f} s")
        if health.detail:
            click.echo(health.detail)
    if not health.healthy:
        ctx.exit(Exit.PROBLEMS)


@outbox.command()
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Show at most this many."
)
@json_option
@project_options
@click.pass_obj
def dead(invocation: Invocation, limit: int, as_json: bool) -> None:
    """List messages that were given up, the latest first, each with its error."""
    with open_app(invocation) as app:
        found = _messages(app).dead(limit)
    if as_json:
        print_json([_dead_json(message) for message in found])
    elif not found:
        click.echo("No dead messages.")
    else:
        for one in found:
            message = one.message
            tenant = f"  tenant {message.tenant_id}" if message.tenant_id else ""
            click.echo(
                f"{message.id}  {message.kind} to {message.destination}  {message.attempts} attempts{tenant}  "
                f"dead for {age(one.died_at)}"
            )
            click.echo(indented(one.error or ""))
        if len(found) == limit:
            click.echo(f"The first {limit}; --limit shows more.", err=True)


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every dead message.")
@json_option
@project_options
@click.pass_context
def retry(ctx: click.Context, ids: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Let dead messages be sent again, their attempts at zero."""
    require_ids_or_all(ids, every)
    with open_app(ctx.obj) as app:
        messages = _messages(app)
        if every:
            say_all(messages.revive_all(), _NOUN, "retried", as_json, none=_NONE)
            return
        found = messages.revive(ids)
    say_ids(ctx, ids, found, _NOUN, "retried", as_json)


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every dead message.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@project_options
@click.pass_context
def discard(ctx: click.Context, ids: tuple[str, ...], every: bool, yes: bool, as_json: bool) -> None:
    """Remove dead messages for good; asks first."""
    require_ids_or_all(ids, every)
    what = "every dead message" if every else counted(len(set(ids)), _NOUN)
    with open_app(ctx.obj) as app:
        messages = _messages(app)
        if not yes and not click.confirm(f"Remove {what} for good?", err=True):
            click.echo("Nothing was discarded.", err=True)
            ctx.exit(Exit.PROBLEMS)
        if every:
            say_all(messages.discard_all(), _NOUN, "discarded", as_json, none=_NONE)
            return
        found = messages.discard(ids)
    say_ids(ctx, ids, found, _NOUN, "discarded", as_json)


def _messages(app: JFast) -> OutboxTable:
    from jfast_sync.errors import ConfigError

    if app.messages is None:
        raise ConfigError('there is no outbox here: add "database" and "outbox" to [plugins] enabled')
    app.set_up_tables()
    return app.messages


def _dead_json(dead: DeadMessage) -> dict[str, Any]:
    message = dead.message
    return {
        "id": message.id,
        "kind": message.kind,
        "destination": message.destination,
        "key": message.key,
        "attempts": message.attempts,
        "request_id": message.request_id,
        "tenant_id": message.tenant_id,
        "error": dead.error,
        "created_at": dead.created_at.isoformat(),
        "died_at": dead.died_at.isoformat(),
    }
