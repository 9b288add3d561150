"""Schemas as values: Pulsar's types and strategies by name, a definition with its identity. Knows no store, no wire, no
Avro.

Two schemas are the same when their digests are: the type counts, then what the definition *says* (JSON is compared as
JSON, so white space and the order of keys do not matter; a primitive type says it all, whatever bytes come with it).
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
    """A definition that is none."""

    code = "bad-schema"


class SchemaType(IntEnum):
    """The numbers are the wire's, the names are Pulsar's. Bytes without a schema are NONE."""

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
        """BYTES is another word for NONE."""
        found = cls.__members__.get("NONE" if text == "BYTES" else text)
        if found is None:
            raise BadSchema(f"{text!r} is no schema type; there are {', '.join([*cls.__members__, 'BYTES'])}")
        return found


DEFINED_IN_JSON = frozenset({SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO, SchemaType.PROTOBUF_NATIVE})
DEFINED_ELSEWHERE = frozenset({SchemaType.KEY_VALUE, SchemaType.EXTERNAL})  # neither JSON nor said by the type alone


class Strategy(StrEnum):
    """What a new version must be to the older ones. UNDEFINED = whatever the level above says."""

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
        """Looks at all older versions, not only at the latest."""
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
"""Pulsar's older setting, by its own names; it counts where no strategy is set."""


@dataclass(frozen=True, slots=True)
class Schema:
    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for schemas that say the same."""
        return hashlib.sha256(self.type.name.encode() + b"\0" + _meaning(self)).hexdigest()


def key_value_parts(schema: Schema) -> tuple[Schema, Schema]:
    """The key's and the value's own schema: two length-prefixed definitions, their types in the properties."""
    assert schema.type is SchemaType.KEY_VALUE
    key, rest = _take(schema.data)
    value, rest = _take(rest)
    if rest:
        raise BadSchema("a KEY_VALUE definition is two definitions and nothing after them")
    types = [SchemaType.named(schema.properties.get(name, "BYTES")) for name in (KEY_TYPE, VALUE_TYPE)]
    return Schema(types[0], key), Schema(types[1], value)


def key_value_data(key: bytes, value: bytes) -> bytes:
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in (key, value))


def _take(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    end = _LENGTH_BYTES + max(length, 0)  # -1 is how Java says "nothing"
    if len(data) < end:
        raise BadSchema("a KEY_VALUE definition is two length-prefixed definitions")
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
