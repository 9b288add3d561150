"""`anabranch completion`: the script that makes a shell complete commands, verbs and options. click writes it."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ANABRANCH_COMPLETE"  # what click looks at when the shell asks


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the completion script of SHELL.

    \b
    Examples:
      eval "$(anabranch completion bash)"           # in ~/.bashrc
      eval "$(anabranch completion zsh)"            # in ~/.zshrc
      anabranch completion fish > ~/.config/fish/completions/anabranch.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows no {shell}"
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "anabranch", VARIABLE).source())
    return 0
