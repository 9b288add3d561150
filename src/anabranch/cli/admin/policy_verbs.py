"""The get-, set- and remove- verbs of one policy of a namespace or topic, under pulsar-admin's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from anabranch.cli.admin.verb import Values, Verb, option

NAMESPACE = "/admin/v2/namespaces/{namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """`noun` follows get-, set- and remove-; `path` is the last part of the REST path."""

    noun: str
    path: str
    about: str
    options: tuple[click.Option, ...]
    body: Callable[[Values], Any]
    method: str = "POST"
    removable: bool = True
    remove: str = "DELETE"  # the method that takes it away
    example: str


def number(*names: str, help: str) -> click.Option:
    return option(*names, "value", type=int, required=True, metavar="N", help=help)


def limit(noun: str, path: str, about: str, *names: str, example: str, method: str = "POST") -> Policy:
    return Policy(
        noun=noun,
        path=path,
        about=about,
        options=(number(*names, help=f"{about}; 0: no limit."),),
        body=lambda values: values["value"],
        method=method,
        example=example,
    )


def on_off(what: str) -> tuple[click.Option, ...]:
    return (
        option("-e", "--enable", is_flag=True, help=f"Switch {what} on."),
        option("-d", "--disable", is_flag=True, help=f"Switch {what} off."),
    )


def is_on(values: Values) -> bool:
    if values["enable"] == values["disable"]:
        raise click.UsageError("give either --enable or --disable")
    return bool(values["enable"])


def verbs_of(policy: Policy, root: str = NAMESPACE, argument: str = "namespace") -> list[Verb]:
    """`argument` names the place in `root`."""
    path = f"{root}/{policy.path}"
    place = policy.example.partition(" ")[0]
    verbs = [
        Verb(
            name=f"get-{policy.noun}", help=f"{policy.about.removesuffix('?')}: what is set.", path=path, example=place
        ),
        Verb(
            name=f"set-{policy.noun}",
            help=f"{policy.about.removesuffix('?')}: set it.",
            method=policy.method,
            path=path,
            options=policy.options,
            body=policy.body,
            done=f"set {policy.noun} of {{{argument}}}",
            example=policy.example,
        ),
    ]
    if policy.removable:
        verbs.append(
            Verb(
                name=f"remove-{policy.noun}",
                help=f"{policy.about.removesuffix('?')}: go by the default again.",
                method=policy.remove,
                path=path,
                done=f"removed {policy.noun} of {{{argument}}}",
                example=place,
            )
        )
    return verbs
