"""Metadata as JSON lines: what `anabranch metadata export` writes and `import` reads. Pure.

    {"anabranch": "metadata", "format": 1, "below": "/"}                       first
    {"key": "/a", "value": "text", "version": 3, "created_ms": …, "modified_ms": …}
    {"key": "/b", "value_base64": "AAE=", …}                                   a value that is not UTF-8
    {"sequence": "/queue/item-", "last": 41}                                   last assigned number of sequential keys
    {"end": true, "records": 2, "sequences": 1}                                last: without it the file is truncated

Ephemeral keys are left out, because they belong to sessions of the store they came from.
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
    """Not a file that `export` wrote, or a damaged or truncated one."""

    code = "bad-archive"


@dataclass(frozen=True, slots=True)
class Begin:
    below: str


@dataclass(frozen=True, slots=True)
class Record:
    item: Item


@dataclass(frozen=True, slots=True)
class Sequence:
    """The last assigned number of a prefix."""

    prefix: str
    last: int


@dataclass(frozen=True, slots=True)
class End:
    records: int
    sequences: int


Line = Begin | Record | Sequence | End


def value_fields(value: bytes) -> dict[str, str]:
    """Text if it is UTF-8, readable for people and jq; otherwise base64 under another name."""
    try:
        return {"value": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def line_of(line: Line) -> str:
    """Without the line break."""
    match line:
        case Begin(below):
            fields: dict[str, Any] = {"anabranch": "metadata", "format": FORMAT, "below": below}
        case Record((key, found)):
            fields = {"key": key, **value_fields(found.value), "version": found.version}
            fields |= {"created_ms": found.created_ms, "modified_ms": found.modified_ms}
        case Sequence(prefix, last):
            fields = {"sequence": prefix, "last": last}
        case End(records, sequences):
            fields = {"end": True, "records": records, "sequences": sequences}
    return json.dumps(fields, ensure_ascii=False)


def parse_line(text: str, number: int) -> Line:
    """`number` counts from 1; error texts name it."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise BadArchive(f"line {number} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadArchive(f"line {number} is not a JSON object")
    try:
        return _line(fields)
    except Error as error:
        raise BadArchive(f"line {number}: {error.reason}") from error
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadArchive(f"line {number} is not a record of metadata: {_error_text(error)}") from error


def _line(fields: Mapping[str, Any]) -> Line:
    if "anabranch" in fields:
        if fields["anabranch"] != "metadata" or fields.get("format") != FORMAT:
            raise BadArchive(f"format {fields.get('format')!r} cannot be read by this release, which reads {FORMAT}")
        return Begin(_text(fields, "below"))
    if "end" in fields:
        return End(_number(fields, "records"), _number(fields, "sequences"))
    if "sequence" in fields:
        prefix, last = _text(fields, "sequence"), _number(fields, "last")
        if not prefix.startswith("/") or not 0 <= last <= NUMBER_MAX:
            raise ValueError(f"not a valid sequence: {prefix!r}, last {last}")
        return Sequence(prefix, last)
    key, value = _text(fields, "key"), _value(fields)
    check_key(key)
    check_value(key, value)
    if is_within(key, RESERVED):
        raise BadArchive(f"{key} is reserved for the store it came from")
    times = _number(fields, "created_ms", 0), _number(fields, "modified_ms", 0)
    return Record((key, Versioned(value, _number(fields, "version", 0), *times, ephemeral=False)))


def _value(fields: Mapping[str, Any]) -> bytes:
    if "value_base64" in fields:
        return base64.b64decode(_text(fields, "value_base64"), validate=True)
    return _text(fields, "value").encode("utf-8")


def _text(fields: Mapping[str, Any], name: str) -> str:
    if not isinstance(found := fields[name], str):
        raise TypeError(f"{name} is not a string")
    return found


def _number(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = fields[name] if default is None else fields.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool):
        raise TypeError(f"{name} is not an integer")
    return found


def _error_text(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
