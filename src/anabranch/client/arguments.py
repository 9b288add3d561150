"""Checks of arguments of applications: a wrong type raises BadOption at the call, not an error of Python later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.client.errors import BadOption

SEQUENCE_MAX = (1 << 63) - 1


def check_type(value: Any, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """`what` is the name of the argument, `expected` describes its values."""
    if not isinstance(value, kinds):
        raise BadOption(f"{what} must be {expected}, not {shown(value)}")


def check_optional(value: Any, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    if value is not None:
        check_type(value, kinds, what, f"{expected} or None")


def check_whole(value: Any, what: str, least: int, most: int = SEQUENCE_MAX) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        upper = f"at least {least}" if most == SEQUENCE_MAX and least else f"from {least} to {most}"
        raise BadOption(f"{what} must be a whole number, {upper}, not {shown(value)}")


def check_choice(value: str, what: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise BadOption(f"{what} must be {' or '.join(map(repr, choices))}, not {shown(value)}")
    return value


def check_concurrency(concurrency: int) -> int:
    check_whole(concurrency, "concurrency", 1)
    return concurrency


def check_function(value: Any, what: str, expected: str) -> None:
    if not callable(value):
        raise BadOption(f"{what} must be {expected}, not {shown(value)}")


def check_has(value: Any, names: Iterable[str], what: str, expected: str) -> None:
    """An object of an application that has the methods of a Protocol, or None."""
    if value is not None and not all(hasattr(value, name) for name in names):
        raise BadOption(f"{what} must be {expected} or None, not {shown(value)}")


def check_properties(properties: Any, what: str = "properties") -> None:
    if properties is None:
        return
    if not isinstance(properties, Mapping):
        raise BadOption(f"{what} must be a mapping, not {type(properties).__name__}")
    for name, text in properties.items():
        if not (is_text(name) and is_text(text)):
            raise BadOption(f"names and values of {what} must be text: {name!r}: {text!r}")


def is_text(value: Any) -> bool:
    """Text that can be encoded."""
    if not isinstance(value, str):
        return False
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def shown(value: Any) -> str:
    """A value in an error text: its start is enough to recognise it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}\u2026"
