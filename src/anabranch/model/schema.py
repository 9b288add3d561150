"""Schemas as values: Pulsar's types, compatibility strategies, and definitions with their identity.

Two schemas are equal if their digests are. The digest covers the type and the meaning of the definition: JSON is
compared as JSON, so white space and the order of keys do not matter. For a primitive type the definition bytes are
ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from anabranch.model.errors import BadRequest

KEY_TYPE, VALUE_TYPE, KEY_VALUE_ENCODING = "key.schema.type", "value.schema.type", "kv.encoding.type"
_LENGTH_BYTES = 4


class BadSchema(BadRequest):
    """An invalid schema definition."""

    code = "bad-schema"


class SchemaType(IntEnum):
    """Numbers as on the wire, names as in Pulsar. Bytes without a schema are NONE."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22

    @classmethod
    def named(cls, text: str) -> SchemaType:
        """The type of this name; BYTES is a synonym of NONE."""
        found = cls.__members__.get("NONE" if text == "BYTES" else text)
        if found is None:
            raise BadSchema(f"{text!r} is not a schema type: one of {', '.join([*cls.__members__, 'BYTES'])}")
        return found


DEFINED_IN_JSON = frozenset({SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO, SchemaType.PROTOBUF_NATIVE})
DEFINED_ELSEWHERE = frozenset(
    {SchemaType.KEY_VALUE, SchemaType.EXTERNAL}
)  # neither JSON nor fully described by the type


class Strategy(StrEnum):
    """Required relation of a new version to older ones. UNDEFINED: inherited from the level above."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all older versions are checked, not only the latest."""
        return self in (Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)

    @property
    def new_reads_old(self) -> bool:
        return self in (
            Strategy.BACKWARD,
            Strategy.BACKWARD_TRANSITIVE,
            Strategy.FULL,
            Strategy.FULL_TRANSITIVE,
        )

    @property
    def old_reads_new(self) -> bool:
        return self in (Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE)


AUTO_UPDATE_STRATEGIES = {
    "AutoUpdateDisabled": Strategy.ALWAYS_INCOMPATIBLE,
    "Backward": Strategy.BACKWARD,
    "Forward": Strategy.FORWARD,
    "Full": Strategy.FULL,
    "AlwaysCompatible": Strategy.ALWAYS_COMPATIBLE,
    "BackwardTransitive": Strategy.BACKWARD_TRANSITIVE,
    "ForwardTransitive": Strategy.FORWARD_TRANSITIVE,
    "FullTransitive": Strategy.FULL_TRANSITIVE,
}
"""Pulsar's older setting with its own names; used where no strategy is set."""


@dataclass(frozen=True, slots=True)
class Schema:
    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for schemas with the same meaning."""
        return hashlib.sha256(self.type.name.encode() + b"\0" + _meaning(self)).hexdigest()


def key_value_parts(schema: Schema) -> tuple[Schema, Schema]:
    """Schemas of key and value: two length-prefixed definitions, with their types in the properties."""
    assert schema.type is SchemaType.KEY_VALUE
    key, rest = _take(schema.data)
    value, rest = _take(rest)
    if rest:
        raise BadSchema("a KEY_VALUE definition must be exactly two definitions")
    types = [SchemaType.named(schema.properties.get(name, "BYTES")) for name in (KEY_TYPE, VALUE_TYPE)]
    return Schema(types[0], key), Schema(types[1], value)


def key_value_data(key: bytes, value: bytes) -> bytes:
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in (key, value))


def _take(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    end = _LENGTH_BYTES + max(length, 0)  # Java writes -1 for "no definition"
    if len(data) < end:
        raise BadSchema("a KEY_VALUE definition must be two length-prefixed definitions")
    return data[_LENGTH_BYTES:end], data[end:]


def parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"the definition is not JSON: {error}") from error


def _meaning(schema: Schema) -> bytes:
    if schema.type in DEFINED_IN_JSON:
        try:
            return json.dumps(parse_json(schema.data), sort_keys=True, separators=(",", ":")).encode()
        except (BadSchema, RecursionError):
            return schema.data
    if schema.type is SchemaType.KEY_VALUE:
        key, value = key_value_parts(schema)
        encoding = schema.properties.get(KEY_VALUE_ENCODING, "INLINE")
        return f"{key.digest} {value.digest} {encoding}".encode()
    return schema.data if schema.type in DEFINED_ELSEWHERE else b""
