"""Text of others on a terminal: payloads, keys, names and error texts may hold escape sequences.

A terminal obeys control characters: they can set its title, clear it, hide text or, in some terminals, type commands.
So everything that a broker sent is printed with `say`, and JSON with `json_text`. Pipes and files get the text
unchanged, because programs read it; JSON is always escaped, which does not change its value.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click


def plain(text: str) -> str:
    """On one line, whatever is in it: control, bidi and invisible characters as escapes."""
    return visible(text, keep="")


def visible(text: str, keep: str = "\n\t") -> str:
    """All but printable characters and those of `keep` as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escape(one) for one in text)


def _escape(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode()


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that holds no control character, and everything printable as it is."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _json_escape(one) for one in text)


def _json_escape(one: str) -> str:
    return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints, with control characters as escapes if it is a terminal that shows them."""
    stream = sys.stderr if err else sys.stdout
    click.echo(visible(text) if stream.isatty() else text, err=err, nl=nl)
