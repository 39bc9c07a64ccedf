"""``jfast-sync completion``: the script a shell loads to complete this command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jfast_sync_cli.options import common_options

__all__ = ["completion"]

_COMMAND = "jfast-sync"
_VARIABLE = "_JFAST_SYNC_COMPLETE"


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL, to be loaded by it.

    \b
    bash:  eval "$(jfast-sync completion bash)"       in ~/.bashrc
    zsh:   eval "$(jfast-sync completion zsh)"        in ~/.zshrc
    fish:  jfast-sync completion fish > ~/.config/fish/completions/jfast-sync.fish
    """
    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(ctx.find_root().command, {}, _COMMAND, _VARIABLE).source())
