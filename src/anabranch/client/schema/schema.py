"""Schemas: the form of a topic's messages, and how values become bytes and back.

A `Schema` encodes values and has a definition, whose versions the broker stores. Old data may need the definition that
it was written with: `reader_of` makes a decoder from a definition.

| schema                                                   | values                       | definition                 |
|----------------------------------------------------------|------------------------------|----------------------------|
| none, `Bytes()`                                          | bytes                        | none                       |
| `String()`                                               | str                          | by its type                |
| `Boolean()` `Int8()` … `Int64()` `Float32()` `Float64()` | bool, int, float             | by its type, big-endian    |
| `Json(cls)`, `Avro(cls)`                                 | dataclasses, pydantic models | an Avro record             |
| `Auto()`                                                 | by the message's version     | fetched from the broker    |
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from anabranch.client.arguments import shown
from anabranch.client.errors import BadOption, SchemaMismatch
from anabranch.model.schema import Schema as Definition
from anabranch.model.schema import SchemaType

Decoder = Callable[[bytes], Any]


class Schema(Protocol):
    """The `schema=` option of producers and consumers. Applications may implement their own."""

    @property
    def definition(self) -> Definition | None:
        """The definition registered with the broker; None for bytes, and for consumers that accept any schema."""

    @property
    def needs_writer(self) -> bool:
        """True if decoding needs the definition that a message was written with."""

    def encode(self, value: Any) -> bytes:
        """Raises SchemaMismatch."""

    def decode(self, data: bytes) -> Any:
        """Decode a message written with this definition, or without a version. Raises SchemaMismatch."""

    def reader_of(self, writer: Definition) -> Decoder:
        """A decoder for messages written with another definition. Raises SchemaMismatch if the two do not fit."""


class _Plain:
    """Schemas that are defined by their type alone."""

    type: SchemaType
    needs_writer = False

    @property
    def definition(self) -> Definition | None:
        return Definition(self.type)

    def encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        raise NotImplementedError

    def reader_of(self, writer: Definition) -> Decoder:
        if writer.type is not self.type:
            raise SchemaMismatch(f"the message is {writer.type.name}, the consumer reads {self.type.name}")
        return self.decode

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Bytes(_Plain):
    """The same as no schema."""

    type = SchemaType.NONE

    @property
    def definition(self) -> None:
        return None

    def encode(self, value: Any) -> bytes:
        return _encoded_bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    def reader_of(self, writer: Definition) -> Decoder:
        return self.decode  # bytes need no definition


class String(_Plain):
    """Text in UTF-8."""

    type = SchemaType.STRING

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise SchemaMismatch(f"STRING takes str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as cause:
            raise SchemaMismatch("the message is not UTF-8") from cause


class _Number(_Plain):
    """One number of a fixed width, big-endian as Java writes it."""

    _form: struct.Struct
    _takes: tuple[type, ...] = (int,)

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, self._takes) or (isinstance(value, bool) and bool not in self._takes):
            raise SchemaMismatch(f"{self.type.name} takes {self._takes[0].__name__}, not {type(value).__name__}")
        try:
            return self._form.pack(value)
        except (struct.error, OverflowError) as cause:
            raise SchemaMismatch(f"{value} does not fit into {self.type.name}") from cause

    def decode(self, data: bytes) -> Any:
        try:
            return self._form.unpack(data)[0]
        except struct.error as cause:
            raise SchemaMismatch(f"{self.type.name} has {self._form.size} bytes, the message {len(data)}") from cause


class Boolean(_Number):
    type, _form, _takes = SchemaType.BOOLEAN, struct.Struct(">?"), (bool,)


class Int8(_Number):
    type, _form = SchemaType.INT8, struct.Struct(">b")


class Int16(_Number):
    type, _form = SchemaType.INT16, struct.Struct(">h")


class Int32(_Number):
    type, _form = SchemaType.INT32, struct.Struct(">i")


class Int64(_Number):
    type, _form = SchemaType.INT64, struct.Struct(">q")


class Float32(_Number):
    type, _form, _takes = SchemaType.FLOAT, struct.Struct(">f"), (float, int)


class Float64(_Number):
    type, _form, _takes = SchemaType.DOUBLE, struct.Struct(">d"), (float, int)


PLAIN: dict[SchemaType, _Plain] = {
    kind.type: kind() for kind in (Bytes, String, Boolean, Int8, Int16, Int32, Int64, Float32, Float64)
}


def schema_of(wanted: Schema | type | None) -> Schema | None:
    """The value of `schema=` as a schema; a class means JSON."""
    if isinstance(wanted, type):
        from anabranch.client.schema.json_avro import Json

        return Json(wanted)
    if wanted is not None and not hasattr(wanted, "reader_of"):
        raise BadOption(f"schema must be a schema of `anabranch.schema`, a class or None, not {shown(wanted)}")
    return wanted


def encoder_of(schema: Schema | None) -> Callable[[Any], bytes]:
    """The function with which a producer encodes values."""
    return _encoded_bytes if schema is None else schema.encode


def _encoded_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SchemaMismatch(
        f"without a schema a message must be bytes, not {type(value).__name__}; set schema= on the producer"
    )
