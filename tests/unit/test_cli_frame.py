from __future__ import annotations

import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner, Result

from jfast_sync.errors import ConfigError, MissingDriverError, PayloadError, SchemaError, UnavailableError
from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Root
from jfast_sync_cli.main import COMMANDS, main


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=text)


def failing(error: BaseException, *arguments: str) -> Result:
    """Run a command that raises `error`, in the frame every command has."""

    class Failing(Root):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            def body() -> None:
                raise error

            return click.Command(cmd_name, callback=body)

    command = Failing("jfast-sync", lazy=COMMANDS, params=main.params)
    return CliRunner().invoke(command, [*arguments, "stats"])


def test_the_exit_codes_are_a_contract() -> None:
    assert {code.name: code.value for code in Exit} == {
        "DONE": 0,
        "PROBLEMS": 1,
        "CONFIGURATION": 2,
        "ENVIRONMENT": 3,
        "MIGRATION": 4,
        "CONTRACT": 5,
        "USAGE": 6,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("jfast.toml: [app] port"), 2),
        (MissingDriverError("install the extra"), 2),
        (UnavailableError("no server"), 3),
        (SchemaError("run db upgrade"), 4),
        (PayloadError("payload.x is NaN"), 1),
        (click.ClickException("no such job"), 1),
        (click.UsageError("give ids"), 6),
        (ZeroDivisionError("division by zero"), 1),
    ],
)
def test_an_error_is_one_message_on_stderr_and_an_exit_code(error: Exception, code: int) -> None:
    result = failing(error)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert str(error) in result.stderr
    assert "Traceback" not in result.output


def test_an_unforeseen_error_names_its_type_and_the_way_to_see_more() -> None:
    result = failing(ZeroDivisionError("division by zero"))
    assert result.stderr.splitlines() == [
        "Error: ZeroDivisionError: division by zero",
        "This was not foreseen; run again with --debug to see where it happened.",
    ]


def test_debug_shows_where_it_happened_without_secrets() -> None:
    result = failing(RuntimeError("cannot reach postgresql://jfast:s3cret@db/x"), "--debug")
    assert result.exit_code == 1
    assert "Traceback (most recent call last):" in result.stderr
    assert "test_cli_frame.py" in result.stderr
    assert "postgresql://jfast:***@db/x" in result.stderr
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("connection to postgresql://u:s3cret@db/x failed"),
        click.UsageError("--backend: postgresql://u:s3cret@db/x"),
        click.ClickException("password=s3cret"),
    ],
)
def test_no_message_shows_a_password(error: Exception) -> None:
    assert "s3cret" not in failing(error).output


def test_ctrl_c_says_nothing_and_exits_130() -> None:
    result = failing(KeyboardInterrupt())
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "")


def test_ctrl_c_stays_ctrl_c_when_it_breaks_what_it_struck() -> None:
    error = RuntimeError("the transaction is gone")
    error.__context__ = KeyboardInterrupt()
    result = failing(error)
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "")


def test_a_reader_that_went_away_is_no_error_message() -> None:
    head = in_shell("config show", "| head -n 1")
    assert head.stdout.startswith("File: ")
    assert head.stderr == ""


def test_a_reader_that_went_away_before_the_first_line_is_141() -> None:
    gone = in_shell("config show", "| true")
    assert (gone.returncode, gone.stdout, gone.stderr) == (141, "", "")


@pytest.mark.parametrize("target", [">&-", ">&- 2>&-"])
def test_without_an_output_a_command_does_its_work(target: str) -> None:
    done = in_shell("config show", target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_output_that_is_full_is_one_message() -> None:
    full = in_shell("config show --json", ">/dev/full")
    assert full.stderr == "Error: the output cannot be written: No space left on device\n"
    assert full.returncode == 1


def in_shell(arguments: str, target: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -c 'from jfast_sync_cli.main import main; main()' {arguments}"
    return subprocess.run(
        ["bash", "-c", f"{command} {target}; exit ${{PIPESTATUS[0]}}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wrker"], "there is no command 'wrker'; did you mean 'worker'?"),
        (["stats", "--jsn"], "--jsn"),
        (["enqueue"], "TASK"),
        (["jobs", "retry"], "give ids, or --all"),
        (["jobs", "retry", "x", "--all"], "not both"),
        (["jobs", "discard", "x", "--task", "y"], "go with --all"),
        (["jobs", "list", "--limit", "0"], "--limit"),
        (["enqueue", "x", "{}", "--priority", "10"], "--priority"),
        (["enqueue", "x", "{}", "--at", "2026-01-01T00:00:00"], "has no time zone"),
        (["enqueue", "x", "{}", "--delay", "soon"], "is not a duration"),
        (["enqueue", "x", "{}", "--delay", "5s", "--at", "2026-01-01T00:00:00Z"], "not both"),
        (["enqueue", "x", "{}", "--lines", "f"], "not both"),
        (["demo", "--jobs", "3"], "--jobs"),
        (["demo", "--backend", "mysql://u:s3cret@h/x"], "postgresql://"),
        (["worker", "--threads", "0"], "--threads"),
    ],
)
def test_wrong_usage_exits_6(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 6
    assert message in result.stderr
    assert "s3cret" not in result.output
    assert result.stdout == ""


def test_without_a_command_the_help_is_shown_and_it_is_wrong_usage() -> None:
    result = run()
    assert result.exit_code == 6
    assert "Commands:" in result.stderr


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("jfast-sync ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: jfast-sync {name}")
    assert "--debug" in result.stdout
    assert "--config" in result.stdout


def test_help_starts_fast_because_it_loads_no_library() -> None:
    code = (
        "import sys; sys.argv = ['jfast-sync', '--help']\n"
        "from jfast_sync_cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "loaded = [name for name in ('sqlalchemy', 'flask', 'psycopg', 'croniter') if name in sys.modules]\n"
        "print('loaded:', loaded)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.rstrip().endswith("loaded: []")
    assert time.monotonic() - started < 5  # about 0.06 s; the bound only catches what is far off on a busy machine


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_JFAST_SYNC_COMPLETE" in result.stdout


def test_completion_offers_commands_with_their_help() -> None:
    done = CliRunner().invoke(
        main,
        env={"_JFAST_SYNC_COMPLETE": "bash_complete", "COMP_WORDS": "jfast-sync j", "COMP_CWORD": "1"},
        prog_name="jfast-sync",
        complete_var="_JFAST_SYNC_COMPLETE",
    )
    assert "jobs" in done.stdout
