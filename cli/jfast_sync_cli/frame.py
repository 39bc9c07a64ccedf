"""The frame around every command: commands loaded when called, errors as one message, exit codes.

Nothing here imports the library before a command needs it, so that ``--help`` and completion answer at once.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from jfast_sync_cli.exits import Exit, exit_of

__all__ = ["Invocation", "Root"]


@dataclass(slots=True)
class Invocation:
    """What every command is called with: where the project is, and how much to say about an error."""

    debug: bool = False
    config: str | None = None
    app: str | None = None
    imports: list[str] = field(default_factory=list)


class _ReaderGone(Exception):
    """Whoever read our output is gone. A BrokenPipeError of its own click would make an exit with 1."""


class Root(click.Group):
    """The top command. ``lazy`` maps a command's name to its one-line help; its module is imported when it is called.

    The command ``stats`` is the object ``stats`` in the module ``jfast_sync_cli.stats``.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        command: click.Command = getattr(import_module(f"jfast_sync_cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._lazy:
            raise click.UsageError(f"there is no command {args[0]!r}{nearest(args[0], self._lazy)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lazy.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in self._lazy.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as exc:
            raise _ReaderGone from exc

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and leave with its exit code; never a traceback without ``--debug``."""
        extra.setdefault("obj", Invocation())
        arguments: dict[str, Any] = extra | {
            "args": args,
            "prog_name": prog_name or "jfast-sync",
            "complete_var": complete_var,
            "windows_expand_args": windows_expand_args,
        }
        if not standalone_mode:
            return super().main(standalone_mode=False, **arguments)
        _open_missing_streams()
        try:
            returned = super().main(standalone_mode=False, **arguments)
            sys.stdout.flush()
            code = returned if isinstance(returned, int) else int(Exit.DONE)
        except SystemExit:
            raise
        except BaseException as exc:
            code = int(report(exc, debug=extra["obj"].debug))
        sys.exit(code)


def report(error: BaseException, *, debug: bool) -> Exit:
    """Say on stderr what ended the command, in one message without secrets, and return its exit code."""
    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case click.Abort():
            return _aborted(error)
        case _ReaderGone() | BrokenPipeError():
            _forget_stdout()
            return Exit.BROKEN_PIPE
        case OSError(errno=errno.ENOSPC | errno.EIO, filename=None, strerror=reason):
            _forget_stdout()
            say_error(f"the output cannot be written: {reason}")
            return Exit.PROBLEMS
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return Exit.USAGE
        case click.UsageError():
            hint = f"\nTry '{error.ctx.command_path} --help' for help." if error.ctx is not None else ""
            say_error(error.format_message() + hint)
            return Exit.USAGE
        case click.ClickException():
            say_error(error.format_message())
            return Exit(error.exit_code)
        case Exception() if _was_interrupted(error):
            return Exit.INTERRUPTED
        case Exception():
            return _failed(error, debug=debug)
        case _:
            raise error


def _aborted(error: click.Abort) -> Exit:
    if isinstance(error.__cause__ or error.__context__, EOFError):
        say_error("nobody answered the question; add --yes where nobody can")
        return Exit.PROBLEMS
    return Exit.INTERRUPTED


def _was_interrupted(error: BaseException) -> bool:
    """Say whether the error only followed from a Ctrl-C that struck in the middle of something."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _forget_stdout() -> None:
    # Nobody takes our output. The interpreter would flush at exit and complain once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    # `>&-` leaves None in sys, and its number to the next file opened, which a stray print of C would then write into.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _failed(error: Exception, *, debug: bool) -> Exit:
    from jfast_sync.errors import JFastError
    from jfast_sync.redact import error_text, traceback_text

    if debug:
        click.echo(traceback_text(error, limit=100_000), err=True)
    if isinstance(error, JFastError):
        say_error(str(error))
    else:
        hint = "" if debug else "\nThis was not foreseen; run again with --debug to see where it happened."
        say_error(error_text(error) + hint)
    return exit_of(error)


def say_error(message: str) -> None:
    """Print one error on stderr, without the secrets a driver may have put into it."""
    from jfast_sync.redact import redact

    click.echo(f"Error: {redact(message)}", err=True)


def nearest(word: str, known: Mapping[str, str] | Sequence[str]) -> str:
    """Return ``"; did you mean ...?"`` for the known word nearest to ``word``, or an empty text."""
    from difflib import get_close_matches

    match = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""


def log_everything() -> None:
    """Send the library's own log, down to DEBUG, to stderr; for ``--debug``."""
    from jfast_sync.logs import configure

    configure("WARNING", json_logs=False)
    logging.getLogger("jfast_sync").setLevel(logging.DEBUG)
