"""`anabranch context …`: name connections, and choose one for all commands."""

from __future__ import annotations

import os

import click

from anabranch.cli.context_file import ENV_CONTEXT, BadContexts, Contexts, load, path_of, save
from anabranch.cli.lazy_group import SuggestingGroup
from anabranch.cli.output.tables import table
from anabranch.cli.output.terminal import json_text, say

_HIDDEN = "***"


def shown_token(token: str) -> str:
    """A file's name is shown, a token is not."""
    return token if not token or token.startswith("file:") else _HIDDEN


@click.group(cls=SuggestingGroup)
def context() -> None:
    """Name connections, and choose one for all commands.

    Options and environment variables win over the context in use; ANABRANCH_CONTEXT chooses another for one command.
    """


@context.command()
@click.argument("name")
@click.option("--admin-url", metavar="URL", help="Where the broker's HTTP is.")
@click.option("--url", "--service-url", "url", metavar="URL", help="Where the broker is.")
@click.option("--token", metavar="TOKEN", help="A token, or file:PATH of one.")
@click.option("--tls-trust-certs", metavar="FILE", help="Certificates to trust.")
def add(name: str, **values: str | None) -> int:
    """Add the context NAME, or replace it. The first one is in use at once.

    \b
    Example:
      anabranch context add prod --admin-url https://prod:8443 --token file:/run/secrets/token
    """
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        raise click.UsageError("give at least --admin-url or --url")
    if name.startswith("-") or not name.isprintable():
        raise click.UsageError("a name does not begin with - and has printable characters only")
    path = path_of(os.environ)
    contexts = load(path).adding(name, given)
    save(path, contexts)
    say(f"context {name} is added{' and in use' if contexts.current == name else ''}")
    return 0


def _known(asked: click.Context, parameter: click.Parameter, given: str) -> list[str]:
    try:
        return sorted(one for one in load(path_of(os.environ)).by_name if one.startswith(given))
    except BadContexts:  # a shell that completes shows no errors; the command will
        return []


@context.command()
@click.argument("name", shell_complete=_known)
def use(name: str) -> int:
    """Use the context NAME from now on; `-` is the one before.

    \b
    Examples:
      anabranch context use prod
      anabranch context use -
    """
    path = path_of(os.environ)
    contexts = load(path).using(name)
    save(path, contexts)
    say(f"context {contexts.current} is in use")
    return 0


@context.command()
@click.argument("name", shell_complete=_known)
def remove(name: str) -> int:
    """Remove the context NAME."""
    path = path_of(os.environ)
    save(path, load(path).removing(name))
    say(f"context {name} is removed")
    return 0


@context.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def list_all(as_json: bool) -> int:
    """List the contexts; * is the one in use. Tokens are not shown."""
    contexts = load(path_of(os.environ))
    current = os.environ.get(ENV_CONTEXT) or contexts.current
    rows = _rows(contexts, current)
    if as_json:
        say(json_text([dict(zip(("current", "name", "adminUrl", "url", "token"), row, strict=True)) for row in rows]))
    else:
        shown = [("*" if row[0] else "", *row[1:]) for row in rows]
        say(table(("", "name", "admin url", "url", "token"), shown) if shown else "no contexts")
    return 0


def _rows(contexts: Contexts, current: str) -> list[tuple[bool, str, str, str, str]]:
    return [
        (name == current, name, one.get("admin_url", ""), one.get("url", ""), shown_token(one.get("token", "")))
        for name, one in sorted(contexts.by_name.items())
    ]
