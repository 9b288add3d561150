"""`Json` and `Avro`: schemas of dataclasses and pydantic models (see `record_types`)."""

from __future__ import annotations

import json
from typing import Any

from anabranch.client.errors import SchemaMismatch
from anabranch.client.schema.avro_codec import avro_reader, avro_writer
from anabranch.client.schema.record_types import record_shape
from anabranch.client.schema.schema import Decoder
from anabranch.model.schema import BadSchema, SchemaType, parse_json
from anabranch.model.schema import Schema as Definition


class Json:
    """Objects of a dataclass or pydantic model as JSON. The definition is an Avro record, as in Pulsar."""

    needs_writer = False  # field names are in the text

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._shape = record_shape(cls, is_json=True)
        self._definition = Definition(SchemaType.JSON, json.dumps(self._shape.avro).encode())

    @property
    def definition(self) -> Definition:
        return self._definition

    def encode(self, value: Any) -> bytes:
        plain = self._shape.dump(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def decode(self, data: bytes) -> Any:
        return self._shape.load(json_value(data))

    def reader_of(self, writer: Definition) -> Decoder:
        if writer.type is not SchemaType.JSON:
            raise SchemaMismatch(f"the message is {writer.type.name}, the consumer reads JSON")
        return self.decode

    def __repr__(self) -> str:
        return f"Json({self.cls.__name__})"


class Avro:
    """Objects of a dataclass or pydantic model as Avro. Old versions are read by Avro's resolution rules."""

    needs_writer = True

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._shape = record_shape(cls, is_json=False)
        self._definition = Definition(SchemaType.AVRO, json.dumps(self._shape.avro).encode())
        self._write = avro_writer(self._shape.avro)
        self._read = avro_reader(self._shape.avro)

    @property
    def definition(self) -> Definition:
        return self._definition

    def encode(self, value: Any) -> bytes:
        return self._write(self._shape.dump(value))

    def decode(self, data: bytes) -> Any:
        return self._shape.load(self._read(data))

    def reader_of(self, writer: Definition) -> Decoder:
        if writer.type is not SchemaType.AVRO:
            raise SchemaMismatch(f"the message is {writer.type.name}, the consumer reads AVRO")
        if writer.digest == self._definition.digest:
            return self.decode
        read, load = avro_reader(avro_definition(writer), self._shape.avro), self._shape.load
        return lambda data: load(read(data))

    def __repr__(self) -> str:
        return f"Avro({self.cls.__name__})"


def json_value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise SchemaMismatch(f"the message is not JSON: {cause}") from cause


def avro_definition(of: Definition) -> Any:
    try:
        return parse_json(of.data)
    except BadSchema as cause:
        raise SchemaMismatch(f"the broker's definition cannot be read: {cause.reason}") from cause
