"""`anabranch completion`: the script that makes a shell complete commands, verbs, options and names. click writes it;
`broker_names` asks the broker for names.
"""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")
_COLONS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}  # else topic://… would be three words"
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
    if shell == "bash":
        click.echo(_COLONS)
    return 0
