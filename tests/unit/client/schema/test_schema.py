"""Schemas: values to bytes and back, definitions, mismatches."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.errors import BadOption, SchemaMismatch
from anabranch.client.schema.auto import Auto, KeyValue
from anabranch.client.schema.avro_codec import avro_reader, avro_writer
from anabranch.client.schema.json_avro import Avro, Json
from anabranch.client.schema.record_types import record_shape
from anabranch.client.schema.schema import (
    Boolean,
    Bytes,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    encoder_of,
)
from anabranch.model.schema import Schema as Definition
from anabranch.model.schema import SchemaType, key_value_data


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Item:
    sku: str
    count: Annotated[int, "int"] = 1


@dataclass
class Order:
    id: int
    customer: str
    items: list[Item]
    paid: bool
    total: float
    labels: dict[str, str]
    raw: bytes
    at: datetime
    colour: Colour
    note: str | None = None
    gift: Item | None = None
    priority: int = 5
    tags: list[str] = field(default_factory=list)


@dataclass
class Node:
    """Holds itself."""

    name: str
    next: Node | None = None


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    email: str | None = None
    home: Item | None = None


ORDER = Order(
    id=1 << 40,
    customer="Ann",
    items=[Item("a", 2), Item("b")],
    paid=True,
    total=12.5,
    labels={"x": "y"},
    raw=b"\x00\xff",
    at=datetime(2026, 11, 17, 1, 2, 3, 456_000, UTC),
    colour=Colour.BLUE,
    note="é",
    gift=Item("g", 7),
)
PLAIN: list[tuple[Schema, Any, bytes]] = [
    (Bytes(), b"x", b"x"),
    (String(), "é", b"\xc3\xa9"),
    (Boolean(), True, b"\x01"),
    (Int8(), -1, b"\xff"),
    (Int16(), 258, b"\x01\x02"),
    (Int32(), -2, b"\xff\xff\xff\xfe"),
    (Int64(), 1 << 40, b"\x00\x00\x01\x00\x00\x00\x00\x00"),
    (Float32(), 1.5, b"\x3f\xc0\x00\x00"),
    (Float64(), -2.0, b"\xc0\x00\x00\x00\x00\x00\x00\x00"),
]


@pytest.mark.parametrize(("schema", "value", "data"), PLAIN)
def test_plain_values_are_encoded_like_java(schema: Schema, value: object, data: bytes) -> None:
    """Scenario 92 of the V5 client."""
    assert schema.encode(value) == data
    assert schema.decode(data) == value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (String(), b"x"),
        (Int8(), 128),
        (Int32(), 1 << 31),
        (Int64(), True),
        (Int64(), "1"),
        (Float64(), "1"),
        (Float32(), 1e300),
        (Boolean(), 1),
        (Bytes(), "x"),
    ],
)
def test_value_that_does_not_fit_raises_schema_mismatch(schema: Schema, value: object) -> None:
    with pytest.raises(SchemaMismatch):
        schema.encode(value)


@pytest.mark.parametrize(("schema", "data"), [(String(), b"\xff"), (Int32(), b"123"), (Boolean(), b"")])
def test_undecodable_bytes_raise_schema_mismatch(schema: Schema, data: bytes) -> None:
    with pytest.raises(SchemaMismatch):
        schema.decode(data)


def test_without_a_schema_a_message_is_bytes() -> None:
    encode = encoder_of(None)
    assert (encode(b"x"), encode(bytearray(b"x")), encode(memoryview(b"x"))) == (b"x", b"x", b"x")
    with pytest.raises(SchemaMismatch, match="set schema= on the producer"):
        encode("text")


@pytest.mark.parametrize("kind", [Json, Avro])
@pytest.mark.parametrize("value", [ORDER, Node("a", Node("b")), Customer(name="Ann", age=3, home=Item("h"))])
def test_records_round_trip(kind: type[Json] | type[Avro], value: object) -> None:
    schema = kind(type(value))
    assert schema.decode(schema.encode(value)) == value
    assert str(schema) == f"{kind.__name__}({type(value).__name__})"


def test_the_definition_is_an_avro_record() -> None:
    definition = json.loads(Json(Order).definition.data)
    types = {one["name"]: one["type"] for one in definition["fields"]}
    assert (definition["type"], definition["name"]) == ("record", "Order")
    assert types["id"] == "long"
    assert types["note"] == ["null", "string"]
    item = {
        "type": "record",
        "name": "Item",
        "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int", "default": 1}],
    }
    assert types["items"] == {"type": "array", "items": item}
    assert types["gift"] == ["null", "Item"], "defined once, then named"
    assert types["at"] == {"type": "long", "logicalType": "timestamp-millis"}
    assert types["colour"] == {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
    defaults = {one["name"]: one["default"] for one in definition["fields"] if "default" in one}
    assert defaults == {"note": None, "gift": None, "priority": 5, "tags": []}
    assert Json(Order).definition.type is SchemaType.JSON
    assert Avro(Order).definition.type is SchemaType.AVRO


def test_non_null_default_comes_first_in_its_union() -> None:
    @dataclass
    class Odd:
        size: int | None = 3

    assert record_shape(Odd, is_json=False).avro["fields"] == [{"name": "size", "type": ["long", "null"], "default": 3}]
    schema = Avro(Odd)
    assert [schema.decode(schema.encode(Odd(size))) for size in (None, 4)] == [Odd(None), Odd(4)]


def test_type_error_names_the_field() -> None:
    wrong = Order(**{**ORDER.__dict__, "items": [Item(7)]})  # type: ignore[arg-type]  # that is the point
    for schema in (Json(Order), Avro(Order)):
        with pytest.raises(SchemaMismatch, match=r"Order\.items\[\]\.sku takes str, not int"):
            schema.encode(wrong)
        with pytest.raises(SchemaMismatch, match="takes Order, not Item"):
            schema.encode(Item("a"))
    with pytest.raises(SchemaMismatch, match="time zone"):
        Json(Order).encode(Order(**{**ORDER.__dict__, "at": datetime(2026, 1, 1)}))
    with pytest.raises(SchemaMismatch, match="does not fit into int"):
        Json(Item).encode(Item("a", 1 << 31))


@pytest.mark.parametrize("data", [b"", b"[", b"[]", b"{}", b'{"sku": 3}', b'{"sku": "a", "count": "x"}', b"\xff"])
def test_json_of_another_shape_raises_schema_mismatch(data: bytes) -> None:
    with pytest.raises(SchemaMismatch):
        Json(Item).decode(data)


def test_json_ignores_extra_fields_and_uses_defaults() -> None:
    assert Json(Item).decode(b'{"sku": "a", "new": 1}') == Item("a", 1)


def test_pydantic_validation_applies() -> None:
    with pytest.raises(SchemaMismatch, match="age"):
        Json(Customer).decode(b'{"name": "Ann", "age": -1}')


@pytest.mark.parametrize("data", [b"", b"\x02", b"\xff" * 20, b"\x02a\x02more"])
@pytest.mark.parametrize("library", ["fastavro", "avro"])
def test_damaged_avro_raises_schema_mismatch(data: bytes, library: str) -> None:
    with pytest.raises(SchemaMismatch):
        avro_reader(record_shape(Item, is_json=False).avro, library=library)(data)


@pytest.mark.parametrize(
    "annotation", [int | str, set[int], dict[int, str], object, complex, list[Any], tuple[int, int]]
)
def test_types_that_avro_lacks_are_refused_at_once(annotation: Any) -> None:
    @dataclass
    class Odd:
        field: int

    Odd.__annotations__["field"] = annotation
    with pytest.raises(BadOption, match=r"Odd\.field"):
        Json(Odd)
    with pytest.raises(BadOption, match="neither a dataclass nor"):
        Avro(int)


def test_old_versions_are_read_by_avro_resolution() -> None:
    """Scenario 93: the writer's definition decides how bytes are read, the reader's what comes out."""
    old = {
        "type": "record",
        "namespace": "com.shop",
        "name": "Thing",
        "fields": [{"name": "gone", "type": "string"}, {"name": "sku", "type": "string"}],
    }
    data = avro_writer(old)({"gone": "g", "sku": "s"})
    read = Avro(Item).reader_of(Definition(SchemaType.AVRO, json.dumps(old).encode()))
    assert read(data) == Item("s", 1)
    with pytest.raises(SchemaMismatch):
        Avro(Item).reader_of(Definition(SchemaType.STRING))
    with pytest.raises(SchemaMismatch, match="cannot be read"):
        Avro(Item).reader_of(Definition(SchemaType.AVRO, b"{"))


def test_auto_reads_by_the_definition() -> None:
    """Scenario 94 of the V5 client."""
    auto = Auto()
    assert auto.reader_of(Definition(SchemaType.STRING))(b"x") == "x"
    assert auto.reader_of(Definition(SchemaType.INT32))(b"\0\0\0\1") == 1
    assert auto.reader_of(Json(Item).definition)(Json(Item).encode(Item("a"))) == {"sku": "a", "count": 1}
    assert auto.reader_of(Avro(Item).definition)(Avro(Item).encode(Item("a"))) == {"sku": "a", "count": 1}
    assert auto.reader_of(Definition(SchemaType.PROTOBUF_NATIVE, b"?"))(b"x") == b"x"
    assert auto.decode(b"x") == b"x"
    pair = Definition(
        SchemaType.KEY_VALUE, key_value_data(b"", b""), {"key.schema.type": "STRING", "value.schema.type": "INT8"}
    )
    assert auto.reader_of(pair)(key_value_data(b"k", b"\x07")) == KeyValue("k", 7)
    with pytest.raises(SchemaMismatch):
        auto.reader_of(pair)(b"\0\0\0\x09k")
    with pytest.raises(BadOption):
        auto.encode({})


VALUES = st.builds(
    Order,
    id=st.integers(-(1 << 63), (1 << 63) - 1),
    customer=st.text(),
    items=st.lists(st.builds(Item, st.text(), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=3),
    paid=st.booleans(),
    total=st.floats(allow_nan=False, allow_infinity=False),
    labels=st.dictionaries(st.text(), st.text(), max_size=3),
    raw=st.binary(),
    at=st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
        lambda when: when.replace(microsecond=when.microsecond // 1000 * 1000)
    ),
    colour=st.sampled_from(Colour),
    note=st.none() | st.text(),
    gift=st.none() | st.builds(Item, st.text()),
)


@given(VALUES)
def test_both_avro_libraries_agree(order: Order) -> None:
    shape = record_shape(Order, is_json=False)
    written = {library: avro_writer(shape.avro, library=library)(shape.dump(order)) for library in ("fastavro", "avro")}
    assert written["fastavro"] == written["avro"]
    for library, data in written.items():
        assert shape.load(avro_reader(shape.avro, library=library)(data)) == order
    assert Json(Order).decode(Json(Order).encode(order)) == order
