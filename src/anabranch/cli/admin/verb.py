"""A verb of `anabranch admin` as data, and the click command made from it. The other modules of this package list the
verbs.

Names in a verb's path are filled from arguments (topic, namespace, tenant, cluster, broker_id) or from the options of
that name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from anabranch.admin.client import DEFAULT_URL, TIMEOUT_SECONDS, AdminClient
from anabranch.admin.paths import component, namespace_path, scalable_path, topic_path
from anabranch.cli import context_file as contexts
from anabranch.cli.broker_names import Completer, completer
from anabranch.cli.lazy_group import SuggestingGroup
from anabranch.cli.output.tables import shown
from anabranch.cli.output.terminal import json_text, say

Values = Mapping[str, Any]
ENV_URL, ENV_TOKEN, ENV_TRUST = "ANABRANCH_ADMIN_URL", "ANABRANCH_TOKEN", "ANABRANCH_TLS_TRUST_CERTS"

_NAMES = re.compile(r"{(\w+)}")
_POSITIONAL: Mapping[str, Callable[[str], str]] = {
    "topic": topic_path,
    "bare_topic": lambda text: topic_path(text).partition("/")[2],  # schemas are named without the domain
    "scalable_topic": scalable_path,
    "namespace": namespace_path,
    "tenant": component,
    "cluster": component,
    "broker_id": component,
    "ledger_id": component,
}
_METAVARS = {"bare_topic": "TOPIC", "scalable_topic": "TOPIC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    name: str
    help: str
    method: str = "GET"
    path: str
    options: tuple[click.Option, ...] = ()
    query: Mapping[str, str] | None = None  # name in the query: option
    body: Callable[[Values], Any] | None = None
    run: Callable[[AdminClient, Values], Any] | None = None  # instead of one plain call
    show: Callable[[Any], str] = shown
    done: str = ""  # said instead of an answer, with the values filled in
    hint: Callable[[AdminClient, Values], str] | None = None  # for people, on standard error; empty: none
    example: str = ""  # what follows `anabranch admin NOUN VERB`

    @property
    def is_read(self) -> bool:
        """Only looks, so `--watch` may repeat it."""
        return self.method == "GET" and not self.done


def option(*names: str, help: str, **more: Any) -> click.Option:
    if "--subscription" in names:
        more.setdefault("shell_complete", names_of("subscription"))
    return click.Option(names, help=help, show_default=more.pop("show_default", False), **more)


def filled(path: str, values: Values) -> str:
    """The path with everything encoded as REST wants it."""

    def one(found: re.Match[str]) -> str:
        return _POSITIONAL.get(found[1], component)(str(values[found[1]]))

    return _NAMES.sub(one, path)


def connection_options() -> list[click.Option]:
    return [
        option(
            "--admin-url", metavar="URL", help=f"Where the broker's HTTP is (default: ${ENV_URL} or {DEFAULT_URL})."
        ),
        option("--token", metavar="TOKEN", help=f"A token, or file:PATH of one (default: ${ENV_TOKEN})."),
        option(
            "--tls-trust-certs", metavar="FILE", help=f"Certificates to trust, for https:// (default: ${ENV_TRUST})."
        ),
        option("--json", "as_json", is_flag=True, help="The answer as JSON, for programs."),
    ]


def token_of(text: str | None) -> str | None:
    """A token itself, or file:PATH, which is read for each connection."""
    return text.removeprefix("token:") if text else None


def setting(context: click.Context, name: str, environment: str) -> str | None:
    """The option of this command, else of a group above it, else the environment's, else that of the context in use
    (`anabranch context`)."""
    at: click.Context | None = context
    while at is not None:
        if (value := at.params.get(name)) is not None:
            return str(value)
        at = at.parent
    return os.environ.get(environment) or contexts.in_use(os.environ).get(name)


def open_admin(context: click.Context, timeout_seconds: float = TIMEOUT_SECONDS) -> AdminClient:
    return AdminClient(
        setting(context, "admin_url", ENV_URL) or DEFAULT_URL,
        token=token_of(setting(context, "token", ENV_TOKEN)),
        trust_file=setting(context, "tls_trust_certs", ENV_TRUST),
        timeout_seconds=timeout_seconds,
    )


def names_of(kind: str) -> Completer | None:
    """Completion of values of a parameter by the broker's names of this kind."""
    return completer(kind, open_admin)


def wants_json(context: click.Context) -> bool:
    at: click.Context | None = context
    while at is not None:
        if at.params.get("as_json"):
            return True
        at = at.parent
    return False


def call_of(verb: Verb, admin: AdminClient, values: Values) -> Any:
    if verb.run is not None:
        return verb.run(admin, values)
    query = {name: values[of] for name, of in (verb.query or {}).items()}
    body = None if verb.body is None else verb.body(values)
    return admin.call(verb.method, filled(verb.path, values), body, query=query).value


def watch_options() -> list[click.Option]:
    every = click.FloatRange(min=0.1)
    return [
        option("-w", "--watch", is_flag=True, help="Look again and again; without a terminal, print what changes."),
        option("--every", type=every, default=2.0, metavar="SECONDS", help="How often, with --watch (default: 2)."),
        option("--looks", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N (0: never)."),
    ]


def command_of(noun: str, verb: Verb) -> click.Command:
    def act(**values: Any) -> int:
        context = click.get_current_context()
        if values.get("watch"):
            as_json = wants_json(context)

            from anabranch.cli.output.repeat import Answers, follow  # asyncio: other verbs start without it

            def ask() -> str:
                answer = call_of(verb, admin, values)
                return json_text(answer) if as_json else verb.show(answer)

            with open_admin(context) as admin:
                follow(Answers(ask).look, values["every"], values["looks"])
            return 0
        with open_admin(context) as admin:
            answer = call_of(verb, admin, values)
            hint = "" if verb.hint is None or wants_json(context) else verb.hint(admin, values)
        if wants_json(context):
            say(json_text(answer, indent=2))
        elif verb.done:
            say(verb.done.format(**{**values, "answer": answer}))
        else:
            say(verb.show(answer))
        if hint:
            say(hint, err=True)
        return 0

    names = [name for name in _NAMES.findall(verb.path) if name in _POSITIONAL]
    arguments = [
        click.Argument([name], metavar=_METAVARS.get(name, name.upper()), shell_complete=names_of(name))
        for name in names
    ]
    text = verb.help
    if verb.example:
        text += f"\n\n\b\nExample:\n  anabranch admin {noun} {verb.name} {verb.example}"
    params: list[click.Parameter] = [*arguments, *verb.options, *connection_options()]
    if verb.is_read:
        params += watch_options()
    return click.Command(verb.name, params=params, callback=act, help=text, short_help=verb.help.splitlines()[0])


def group_of(noun: str, help: str, verbs: Sequence[Verb]) -> click.Group:
    group = SuggestingGroup(noun, help=help, params=list(connection_options()), no_args_is_help=True)
    for verb in verbs:
        assert verb.name not in group.commands, f"{noun} {verb.name} is there twice"
        group.add_command(command_of(noun, verb))
    return group
