"""Text of others on a terminal: payloads, keys, names and error texts may hold escape sequences.

A terminal obeys control characters: they can set its title, clear it, hide text or, in some terminals, type commands.
So everything that a broker sent is printed with `say`, and JSON with `json_text`. Pipes and files get the text
unchanged, because programs read it; JSON is always escaped, which does not change its value.
"""

from __future__ import annotations

import sys

import click

from anabranch.runtime.logs import json_text, visible

__all__ = ["json_text", "plain", "say", "visible"]


def plain(text: str) -> str:
    """On one line, whatever is in it: control, bidi and invisible characters as escapes."""
    return visible(text, keep="")


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints, with control characters as escapes if it is a terminal that shows them."""
    stream = sys.stderr if err else sys.stdout
    click.echo(visible(text) if stream.isatty() else text, err=err, nl=nl)
