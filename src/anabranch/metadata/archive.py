"""Metadata as lines of JSON: what `anabranch metadata export` writes and `import` reads. Pure; knows no store, no file.

    {"anabranch": "metadata", "format": 1, "below": "/"}                       first
    {"key": "/a", "value": "text", "version": 3, "created_ms": …, "modified_ms": …}
    {"key": "/b", "value_base64": "AAE=", …}                                   a value that is not UTF-8
    {"sequence": "/queue/item-", "last": 41}                                   a number that must not be given again
    {"end": true, "records": 2, "sequences": 1}                                last: without it the file was cut short

Ephemeral keys are not in it: they belong to sessions of the store they came from.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.metadata.interface import RESERVED, Item, Versioned, check_key, check_value, is_within
from anabranch.metadata.recipes.sequential_keys import NUMBER_MAX
from anabranch.model.errors import BadRequest, Error

FORMAT = 1


class BadArchive(BadRequest):
    """Not a file that `export` wrote, or one that was damaged or cut short."""

    code = "bad-archive"


@dataclass(frozen=True, slots=True)
class Begin:
    below: str


@dataclass(frozen=True, slots=True)
class Record:
    item: Item


@dataclass(frozen=True, slots=True)
class Sequence:
    """The last number that was given under a prefix."""

    prefix: str
    last: int


@dataclass(frozen=True, slots=True)
class End:
    records: int
    sequences: int


Line = Begin | Record | Sequence | End


def value_fields(value: bytes) -> dict[str, str]:
    """Text where it is UTF-8, so that people and jq can read it; otherwise base64 under another name."""
    try:
        return {"value": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def line_of(line: Line) -> str:
    """Without the line's end."""
    match line:
        case Begin(below):
            told: dict[str, Any] = {"anabranch": "metadata", "format": FORMAT, "below": below}
        case Record((key, found)):
            told = {"key": key, **value_fields(found.value), "version": found.version}
            told |= {"created_ms": found.created_ms, "modified_ms": found.modified_ms}
        case Sequence(prefix, last):
            told = {"sequence": prefix, "last": last}
        case End(records, sequences):
            told = {"end": True, "records": records, "sequences": sequences}
    return json.dumps(told, ensure_ascii=False)


def parse_line(text: str, number: int) -> Line:
    """`number` counts from 1 and is named in complaints."""
    try:
        told = json.loads(text)
    except ValueError as error:
        raise BadArchive(f"line {number} is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise BadArchive(f"line {number} is not a JSON object")
    try:
        return _line(told)
    except Error as error:
        raise BadArchive(f"line {number}: {error.reason}") from error
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadArchive(f"line {number} is not a record of metadata: {_words(error)}") from error


def _line(told: Mapping[str, Any]) -> Line:
    if "anabranch" in told:
        if told["anabranch"] != "metadata" or told.get("format") != FORMAT:
            raise BadArchive(f"format {told.get('format')!r} is not what this release reads ({FORMAT})")
        return Begin(_text(told, "below"))
    if "end" in told:
        return End(_number(told, "records"), _number(told, "sequences"))
    if "sequence" in told:
        prefix, last = _text(told, "sequence"), _number(told, "last")
        if not prefix.startswith("/") or not 0 <= last <= NUMBER_MAX:
            raise ValueError(f"no sequence {prefix!r} with the number {last}")
        return Sequence(prefix, last)
    key, value = _text(told, "key"), _value(told)
    check_key(key)
    check_value(key, value)
    if is_within(key, RESERVED):
        raise BadArchive(f"{key} belongs to the store it came from")
    times = _number(told, "created_ms", 0), _number(told, "modified_ms", 0)
    return Record((key, Versioned(value, _number(told, "version", 0), *times, ephemeral=False)))


def _value(told: Mapping[str, Any]) -> bytes:
    if "value_base64" in told:
        return base64.b64decode(_text(told, "value_base64"), validate=True)
    return _text(told, "value").encode("utf-8")


def _text(told: Mapping[str, Any], name: str) -> str:
    if not isinstance(found := told[name], str):
        raise TypeError(f"{name} is not a text")
    return found


def _number(told: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = told[name] if default is None else told.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool):
        raise TypeError(f"{name} is not a whole number")
    return found


def _words(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
