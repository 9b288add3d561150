"""A schema that passes the compatibility check can read old data, as another Avro library decodes it. The identity of a
schema does not depend on its spelling."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.schemas.compatibility import check_valid, objection
from anabranch.model.schema import BadSchema, Schema, SchemaType, Strategy

PRIMITIVES = ("int", "long", "float", "double", "boolean", "string", "bytes")
DEFAULTS: dict[str, Any] = {
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "boolean": True,
    "string": "s",
    "bytes": "",
}
VALUES: dict[str, Any] = {**DEFAULTS, "bytes": b"\x01", "string": "text"}


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Any:
    kind = draw(st.sampled_from(["primitive", "primitive", "optional", "array", "map", "enum", "record"]))
    if depth == 0 or kind == "primitive":
        return draw(st.sampled_from(PRIMITIVES))
    if kind == "optional":
        return ["null", draw(st.sampled_from(PRIMITIVES))]
    if kind == "array":
        return {"type": "array", "items": draw(types(depth - 1))}
    if kind == "map":
        return {"type": "map", "values": draw(types(depth - 1))}
    if kind == "enum":
        return {"type": "enum", "name": "E", "symbols": draw(st.sampled_from([["x"], ["x", "y"], ["x", "y", "z"]]))}
    return draw(records(depth - 1, "N"))


@st.composite
def records(draw: st.DrawFn, depth: int = 2, name: str = "R") -> Any:
    fields = []
    for field in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
        kind = draw(types(depth))
        made: dict[str, Any] = {"name": field, "type": kind}
        if draw(st.booleans()):
            if isinstance(kind, str):
                made["default"] = DEFAULTS[kind]
            elif isinstance(kind, list):
                made["default"] = None
        fields.append(made)
    return {"type": "record", "name": name, "fields": fields}


def named_once(definition: Any) -> bool:
    """Avro lets a name be defined only once; drawings that do it twice are not of interest."""
    text = json.dumps(definition)
    return text.count('"name": "E"') <= 1 and text.count('"name": "N"') <= 1


def datum(kind: Any, last: bool) -> Any:
    """A value of the type; `last` picks the other branch or symbol."""
    if isinstance(kind, str):
        return VALUES[kind]
    if isinstance(kind, list):
        return datum(kind[1], last) if last else None
    match kind["type"]:
        case "array":
            return [datum(kind["items"], last)]
        case "map":
            return {"k": datum(kind["values"], last)}
        case "enum":
            return kind["symbols"][-1 if last else 0]
        case _:
            return {field["name"]: datum(field["type"], last) for field in kind["fields"]}


def schema(definition: Any, **form: Any) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps(definition, **form).encode())


DEFINITIONS = records().filter(named_once)


@settings(max_examples=100, deadline=None)
@given(DEFINITIONS, DEFINITIONS)
def test_compatible_schema_can_read_old_data(old: Any, new: Any) -> None:
    check_valid(schema(old), 1 << 19)
    backward = objection(Strategy.BACKWARD, schema(new), [schema(old)])
    forward = objection(Strategy.FORWARD, schema(new), [schema(old)])
    full = objection(Strategy.FULL, schema(new), [schema(old)])
    assert (full is None) == (backward is None and forward is None)
    if backward is None:
        for last in (False, True):
            written = io.BytesIO()
            fastavro.schemaless_writer(written, old, datum(old, last))
            written.seek(0)
            read: Any = fastavro.schemaless_reader(written, old, new)
            assert set(read) == {field["name"] for field in new["fields"]}


@settings(max_examples=40, deadline=None)
@given(DEFINITIONS)
def test_schema_is_compatible_with_itself_in_any_spelling(definition: Any) -> None:
    plain, spaced = schema(definition), schema(definition, indent=3, sort_keys=True)
    assert plain.digest == spaced.digest
    for strategy in set(Strategy) - {Strategy.UNDEFINED, Strategy.ALWAYS_INCOMPATIBLE}:
        assert objection(strategy, spaced, [plain]) is None


@settings(max_examples=40, deadline=None)
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.sampled_from(["record", "int", "enum", "x", None, 3, True]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "name", "fields", "symbols", "items", "default", "logicalType"]), inner
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_text_is_a_schema_or_bad_schema(data: bytes) -> None:
    for kind in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE, SchemaType.KEY_VALUE):
        try:
            check_valid(Schema(kind, data), 1 << 19)
        except BadSchema as error:
            assert error.reason
