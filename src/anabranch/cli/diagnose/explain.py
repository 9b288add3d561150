"""`anabranch explain CODE`: what an error code means, from the error classes themselves."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from difflib import get_close_matches

import click

import anabranch
from anabranch.cli.output.terminal import json_text, say
from anabranch.model.errors import Error

_SKIPPED = ("anabranch.spark", "anabranch.testing", "anabranch.__main__")  # need further packages, or run a program


class UnknownCode(Error):
    """No error of this version has the code."""

    code = "unknown-code"


def error_classes() -> dict[str, list[type[Error]]]:
    """All errors by code. It imports the whole package: a second, for a person who waits for a sentence."""
    for module in pkgutil.walk_packages(anabranch.__path__, "anabranch.", onerror=lambda name: None):
        if not module.name.startswith(_SKIPPED) and not module.name.endswith("_pb2"):
            try:
                importlib.import_module(module.name)
            except ImportError:  # an extra that is not installed: its errors cannot be raised here
                continue
    found: dict[str, list[type[Error]]] = {}
    for one in _subclasses(Error):
        if "code" in vars(one):
            found.setdefault(one.code, []).append(one)
    return found


def _subclasses(base: type[Error]) -> Iterator[type[Error]]:
    for one in base.__subclasses__():
        yield one
        yield from _subclasses(one)


def meaning_of(kind: type[Error]) -> str:
    """Its docstring on one line; that of the nearest base which has one."""
    for one in kind.__mro__:
        if (text := vars(one).get("__doc__")) and one is not object:
            return " ".join(inspect.cleandoc(text).split())
    return ""


def explained(code: str) -> dict[str, object]:
    """Raises UnknownCode."""
    known = error_classes()
    if code not in known:
        near = get_close_matches(code, known, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UnknownCode(f"no error has the code {code!r}{hint}")
    kinds = known[code]
    status = importlib.import_module("anabranch.rest.errors").STATUS.get(code)
    return {
        "code": code,
        "meanings": sorted({meaning_of(one) for one in kinds} - {""}),
        "retryable": any(one.retryable for one in kinds),
        "httpStatus": status,
    }


@click.command()
@click.argument("code")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def explain(code: str, as_json: bool) -> int:
    """Say what an error CODE means, and whether the same call may succeed later.

    \b
    Examples:
      anabranch explain topic-terminated
      anabranch explain foreign-host
    """
    found = explained(code)
    if as_json:
        say(json_text(found, indent=2))
        return 0
    status = "" if found["httpStatus"] is None else f" (HTTP {found['httpStatus']})"
    again = "may succeed later" if found["retryable"] else "fails again until something changes"
    meanings = found["meanings"]
    assert isinstance(meanings, list)
    say("\n".join([f"{code}{status}", *(f"  {one}" for one in meanings), f"  The same call {again}."]))
    return 0
