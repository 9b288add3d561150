"""Option types: durations (90s, 10m, 3h), sizes (100M, 2G), lists (a,b,c), pairs (name=value). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

_DURATION = re.compile(r"(\d{1,9})\s*([smhdwy]?)", re.IGNORECASE)
_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)i?b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def seconds_of(text: str) -> int:
    """`90s`, `30m`, `12h`, `7d`, `4w`, `1y`; a bare number is seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a time like 30m, 12h, 7d or 1y")
    return int(found[1]) * _DURATION_UNITS[found[2].lower()]


def bytes_of(text: str) -> int:
    """`512`, `10k`, `100M`, `2G`, `1T`; a bare number is bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size like 512, 10k, 100M or 2G")
    return int(found[1]) * _SIZE_UNITS[found[2].lower()]


class Time(click.ParamType[int]):
    """Seconds; -1 where "for ever" makes sense."""

    name = "time"

    def __init__(self, *, endless: bool = False) -> None:
        self._endless = endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        return -1 if self._endless and value.strip() == "-1" else seconds_of(value)


class Size(click.ParamType[int]):
    """Bytes; -1 where "without limit" makes sense."""

    name = "size"

    def __init__(self, *, endless: bool = False) -> None:
        self._endless = endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        return -1 if self._endless and value.strip() == "-1" else bytes_of(value)


def words_of(texts: Sequence[str] | str | None) -> list[str]:
    """Comma-separated, given once or several times."""
    given = [texts] if isinstance(texts, str) else list(texts or ())
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def properties_of(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in words_of(texts):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not like name=value")
        found[name] = value
    return found


def message_id_of(text: str) -> dict[str, int]:
    """`ledger:entry` as REST names a message."""
    parts = text.split(":")
    if len(parts) < 2 or not all(part.lstrip("-").isdecimal() for part in parts[:2]):
        raise click.BadParameter(f"{text!r} is not a message id like 12:0")
    return {"ledgerId": int(parts[0]), "entryId": int(parts[1]), "partitionIndex": -1, "batchIndex": -1}
