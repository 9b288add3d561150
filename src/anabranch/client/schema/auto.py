"""`Auto`: a consumer schema that reads each message by the schema version that it names."""

from __future__ import annotations

from typing import Any, NamedTuple

from anabranch.client.errors import BadOption, SchemaMismatch
from anabranch.client.schema.avro_codec import avro_reader
from anabranch.client.schema.json_avro import avro_definition, json_value
from anabranch.client.schema.schema import PLAIN, Decoder
from anabranch.model.schema import Schema as Definition
from anabranch.model.schema import SchemaType, key_value_parts


class KeyValue(NamedTuple):
    """A message of a KEY_VALUE schema with key and value in its body."""

    key: Any
    value: Any


class Auto:
    """For consumers: records are decoded to dicts, texts and numbers to Python values; without a schema, bytes."""

    needs_writer = True

    @property
    def definition(self) -> None:
        return None

    def encode(self, value: Any) -> bytes:
        raise BadOption("Auto() is for consumers; a producer needs a schema of its own")

    def decode(self, data: bytes) -> bytes:
        return data

    def reader_of(self, writer: Definition) -> Decoder:
        plain = PLAIN.get(writer.type)
        if plain is not None:
            return plain.decode
        if writer.type is SchemaType.JSON:
            return json_value
        if writer.type is SchemaType.AVRO:
            return avro_reader(avro_definition(writer))
        if writer.type is SchemaType.KEY_VALUE:
            return self._pair_reader(writer)
        return self.decode  # dates, protobuf and others: the bytes

    def _pair_reader(self, writer: Definition) -> Decoder:
        key, value = (self.reader_of(one) for one in key_value_parts(writer))
        if writer.properties.get("kv.encoding.type", "INLINE") != "INLINE":
            return value  # the key is the message key

        def read(data: bytes) -> KeyValue:
            first, rest = _taken(data)
            second, rest = _taken(rest)
            if rest:
                raise SchemaMismatch("the message has bytes after its key and value")
            return KeyValue(None if first is None else key(first), None if second is None else value(second))

        return read

    def __repr__(self) -> str:
        return "Auto()"


def _taken(data: bytes) -> tuple[bytes | None, bytes]:
    length = int.from_bytes(data[:4], "big", signed=True)
    if len(data) < 4 or length < -1 or len(data) < 4 + length:
        raise SchemaMismatch("the message is not a key with a value")
    return (None, data[4:]) if length < 0 else (data[4 : 4 + length], data[4 + length :])
