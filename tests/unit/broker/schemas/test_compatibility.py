"""Compatibility of schemas: every strategy, every kind of change, every type, and invalid definitions."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from anabranch.broker.schemas.compatibility import (
    DEPTH_MAX,
    NODES_MAX,
    SchemaTooLarge,
    check_valid,
    objection,
    reader_objection,
)
from anabranch.model.schema import (
    AUTO_UPDATE_STRATEGIES,
    BadSchema,
    Schema,
    SchemaType,
    Strategy,
    key_value_data,
)

LIMIT = 512 * 1024
A, F = ("a", "int"), ("b", "string")


def record(*fields: Any, name: str = "R", **extra: Any) -> dict[str, Any]:
    made = [{"name": each[0], "type": each[1], **(each[2] if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made, **extra}


def avro(*fields: Any, kind: SchemaType = SchemaType.AVRO, name: str = "R") -> Schema:
    return Schema(kind, json.dumps(record(*fields, name=name)).encode())


def with_default(value: Any) -> dict[str, Any]:
    return {"default": value}


ONE = avro(A)
ADDED = avro(A, F)  # old data lacks b
ADDED_OPTIONAL = avro(A, ("b", "string", with_default("x")))
WIDER = avro(("a", "long"))
OTHER_TYPE = avro(("a", "string"))

# What the strategies say about (existing, new): does the new read the old, does the old read the new?
CHANGES = {
    "field added": (ONE, ADDED, False, True),
    "field added with a default": (ONE, ADDED_OPTIONAL, True, True),
    "field removed": (ADDED, ONE, True, False),
    "field with a default removed": (ADDED_OPTIONAL, ONE, True, True),
    "int becomes long": (ONE, WIDER, True, False),
    "long becomes int": (WIDER, ONE, False, True),
    "int becomes string": (ONE, OTHER_TYPE, False, False),
    "record renamed": (ONE, avro(A, name="S"), True, True),
    "becomes optional": (ONE, avro(("a", ["null", "int"])), True, False),
    "field renamed with an alias": (ONE, avro(("z", "int", {"aliases": ["a"]})), True, False),
    "symbol added": (
        avro(("e", {"type": "enum", "name": "E", "symbols": ["x"]})),
        avro(("e", {"type": "enum", "name": "E", "symbols": ["x", "y"]})),
        True,
        False,
    ),
    "symbol added, default given": (
        avro(("e", {"type": "enum", "name": "E", "symbols": ["x"], "default": "x"})),
        avro(("e", {"type": "enum", "name": "E", "symbols": ["x", "y"], "default": "x"})),
        True,
        True,
    ),
    "map values wider": (
        avro(("m", {"type": "map", "values": "int"})),
        avro(("m", {"type": "map", "values": "double"})),
        True,
        False,
    ),
    "array items other": (
        avro(("l", {"type": "array", "items": "int"})),
        avro(("l", {"type": "array", "items": "boolean"})),
        False,
        False,
    ),
    "nested field added": (
        avro(("n", record(A, name="N"))),
        avro(("n", record(A, F, name="N"))),
        False,
        True,
    ),
    "fixed size": (
        avro(("f", {"type": "fixed", "name": "X", "size": 4})),
        avro(("f", {"type": "fixed", "name": "X", "size": 8})),
        False,
        False,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_each_strategy(change: str, kind: SchemaType) -> None:
    existing, new, new_reads_old, old_reads_new = CHANGES[change]
    existing, new = Schema(kind, existing.data), Schema(kind, new.data)
    expected = {
        Strategy.ALWAYS_COMPATIBLE: True,
        Strategy.ALWAYS_INCOMPATIBLE: False,
        Strategy.BACKWARD: new_reads_old,
        Strategy.BACKWARD_TRANSITIVE: new_reads_old,
        Strategy.FORWARD: old_reads_new,
        Strategy.FORWARD_TRANSITIVE: old_reads_new,
        Strategy.FULL: new_reads_old and old_reads_new,
        Strategy.FULL_TRANSITIVE: new_reads_old and old_reads_new,
    }
    assert {strategy: objection(strategy, new, [existing]) is None for strategy in expected} == expected


def test_recursive_definitions_end() -> None:
    tree = avro(("left", ["null", "R"]), ("value", "int"))
    wider = avro(("left", ["null", "R"]), ("value", "long"))
    assert objection(Strategy.BACKWARD, wider, [tree]) is None
    assert objection(Strategy.FORWARD, wider, [tree]) is not None


def test_transitive_strategies_compare_with_all_versions() -> None:
    history = [avro(F), ONE]  # the second one was let in by another strategy
    new = avro(A, ("b", "int", with_default(1)))
    assert objection(Strategy.BACKWARD, new, history) is None
    assert objection(Strategy.BACKWARD_TRANSITIVE, new, history) is not None


def test_reason_names_what_and_where() -> None:
    text = objection(Strategy.FULL, ADDED, [ONE])
    assert text is not None
    assert "missing default value at /fields/1: b" in text
    assert "FULL" in text


def test_first_schema_is_always_compatible() -> None:
    for strategy in Strategy:
        if strategy is not Strategy.UNDEFINED:
            assert objection(strategy, ONE, []) is None


def test_types_do_not_mix() -> None:
    text = objection(Strategy.FULL, avro(A, kind=SchemaType.JSON), [ONE])
    assert text == "exists schema type AVRO, new schema type JSON"
    assert objection(Strategy.ALWAYS_COMPATIBLE, avro(A, kind=SchemaType.JSON), [ONE]) is None
    assert objection(Strategy.BACKWARD, Schema(SchemaType.INT32), [Schema(SchemaType.INT64)]) is not None


def test_equivalent_definitions_are_equal() -> None:
    spaced = Schema(SchemaType.AVRO, json.dumps(json.loads(ONE.data), indent=2, sort_keys=True).encode())
    assert spaced.data != ONE.data
    assert spaced.digest == ONE.digest
    assert avro(A, kind=SchemaType.JSON).digest != ONE.digest
    assert ADDED.digest != ONE.digest


def test_primitive_types_need_no_definition() -> None:
    assert Schema(SchemaType.STRING, b"null").digest == Schema(SchemaType.STRING).digest
    assert Schema(SchemaType.STRING).digest != Schema(SchemaType.INT8).digest
    assert objection(Strategy.FULL, Schema(SchemaType.STRING, b"null"), [Schema(SchemaType.STRING)]) is None


def test_other_types_must_match_exactly() -> None:
    old, new = Schema(SchemaType.EXTERNAL, b"1"), Schema(SchemaType.EXTERNAL, b"2")
    assert objection(Strategy.BACKWARD, new, [old]) is not None
    assert objection(Strategy.BACKWARD, old, [old]) is None
    assert objection(Strategy.ALWAYS_COMPATIBLE, new, [old]) is None


def test_json_schema_definitions_must_be_equal() -> None:
    first = Schema(SchemaType.JSON, b'{"type": "object", "properties": {"a": {"type": "integer"}}}')
    second = Schema(SchemaType.JSON, b'{"type": "object", "properties": {}}')
    check_valid(first, LIMIT)
    assert objection(Strategy.FULL, first, [first]) is None
    assert objection(Strategy.FULL, second, [first]) is not None
    assert objection(Strategy.FULL, avro(A, kind=SchemaType.JSON), [first]) is not None


# -- consumers


@pytest.mark.parametrize("strategy", [Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL])
def test_consumer_must_read_latest_version(strategy: Strategy) -> None:
    assert reader_objection(strategy, WIDER, [OTHER_TYPE, ONE]) is None  # reads; whether it could write does not count
    assert reader_objection(strategy, ADDED, [ONE]) is not None


@pytest.mark.parametrize("strategy", [Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE])
def test_consumer_must_read_all_versions_if_transitive(strategy: Strategy) -> None:
    assert reader_objection(strategy, WIDER, [ONE, ADDED]) is None
    assert reader_objection(strategy, WIDER, [OTHER_TYPE, ONE]) is not None


def test_consumers_with_always_strategies() -> None:
    assert reader_objection(Strategy.ALWAYS_INCOMPATIBLE, ONE, [ONE, ADDED]) is None
    assert reader_objection(Strategy.ALWAYS_INCOMPATIBLE, WIDER, [ONE]) is not None
    assert reader_objection(Strategy.ALWAYS_COMPATIBLE, OTHER_TYPE, [ONE]) is None


# -- key and value


def pair(key: Schema, value: Schema, encoding: str = "INLINE") -> Schema:
    properties = {"key.schema.type": key.type.name, "value.schema.type": value.type.name, "kv.encoding.type": encoding}
    return Schema(SchemaType.KEY_VALUE, key_value_data(key.data, value.data), properties)


STRING = Schema(SchemaType.STRING)


def test_key_and_value_are_checked_by_type() -> None:
    old = pair(STRING, ONE)
    check_valid(old, LIMIT)
    assert objection(Strategy.FULL, pair(STRING, ADDED_OPTIONAL), [old]) is None
    assert "value: " in (objection(Strategy.FULL, pair(STRING, ADDED), [old]) or "")
    assert "key: " in (objection(Strategy.FULL, pair(Schema(SchemaType.INT8), ONE), [old]) or "")
    assert "encoding" in (objection(Strategy.FULL, pair(STRING, ONE, "SEPARATED"), [old]) or "")


def test_key_value_with_empty_java_definition() -> None:
    check_valid(Schema(SchemaType.KEY_VALUE, b"\xff\xff\xff\xff" * 2), LIMIT)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\x09abc", key_value_data(b"", b"") + b"x"])
def test_malformed_key_value_is_refused(data: bytes) -> None:
    with pytest.raises(BadSchema):
        check_valid(Schema(SchemaType.KEY_VALUE, data), LIMIT)


def test_key_value_parts_must_be_schemas() -> None:
    with pytest.raises(BadSchema, match="Avro"):
        check_valid(pair(STRING, Schema(SchemaType.AVRO, b'{"type": "zzz"}')), LIMIT)
    nested = Schema(SchemaType.KEY_VALUE, key_value_data(b"", b""), {"key.schema.type": "KEY_VALUE"})
    with pytest.raises(BadSchema, match="cannot hold"):
        check_valid(nested, LIMIT)
    with pytest.raises(BadSchema, match="not a schema type"):
        check_valid(Schema(SchemaType.KEY_VALUE, key_value_data(b"", b""), {"key.schema.type": "ZZZ"}), LIMIT)


# -- protobuf


def protobuf(message: str = "M", package: str = "p", root: str = "f.proto", data: str | None = None) -> Schema:
    files = descriptor_pb2.FileDescriptorSet()
    made = files.file.add(name="f.proto", package=package)
    made.message_type.add(name="M")
    encoded = base64.b64encode(files.SerializeToString()).decode() if data is None else data
    name = f"{package}.{message}" if package else message
    definition = {"fileDescriptorSet": encoded, "rootMessageTypeName": name, "rootFileDescriptorName": root}
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode())


def test_protobuf_descriptors_are_validated() -> None:
    check_valid(protobuf(), LIMIT)
    check_valid(protobuf(package=""), LIMIT)
    for broken in (protobuf("Other"), protobuf(root="g.proto"), protobuf(data="%%"), protobuf(data="AAAA")):
        with pytest.raises(BadSchema):
            check_valid(broken, LIMIT)
    with pytest.raises(BadSchema, match="rootMessageTypeName"):
        check_valid(Schema(SchemaType.PROTOBUF_NATIVE, b"{}"), LIMIT)


def test_protobuf_must_match_exactly() -> None:
    assert objection(Strategy.FULL, protobuf(), [protobuf()]) is None
    assert objection(Strategy.FULL, protobuf(package="q"), [protobuf()]) is not None


# -- invalid and too large schemas


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"3",
        b'"zzz"',
        b"{}",
        b'{"type": "record", "name": "R"}',
        b'{"type": "record", "name": "1R", "fields": []}',
        b'{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Missing"}]}',
        b'{"type": "enum", "name": "E", "symbols": ["a", "a"]}',
        b'{"type": {"type": []}}',
        b'["int", "int"]',
    ],
)
def test_not_avro(definition: bytes) -> None:
    with pytest.raises(BadSchema):
        check_valid(Schema(SchemaType.AVRO, definition), LIMIT)


def test_dollar_in_java_class_names_is_accepted() -> None:
    check_valid(Schema(SchemaType.AVRO, json.dumps(record(A, namespace="org.example.Outer$")).encode()), LIMIT)


@pytest.mark.parametrize("logical", ["date", "unheard-of", 3, None, {"a": []}])
def test_logical_types_do_not_affect_compatibility(logical: Any, recwarn: pytest.WarningsRecorder) -> None:
    said = avro(("a", {"type": "int", "logicalType": logical}))
    check_valid(said, LIMIT)
    assert objection(Strategy.FULL, said, [ONE]) is None
    assert recwarn.list == []


def test_auto_consume_is_refused() -> None:
    with pytest.raises(BadSchema, match="AUTO_CONSUME"):
        check_valid(Schema(SchemaType.AUTO_CONSUME), LIMIT)


def test_sizes_are_bounded() -> None:
    check_valid(Schema(SchemaType.EXTERNAL, b"x" * LIMIT), LIMIT)
    with pytest.raises(SchemaTooLarge, match=str(LIMIT)):
        check_valid(Schema(SchemaType.EXTERNAL, b"x" * (LIMIT + 1)), LIMIT)
    with pytest.raises(SchemaTooLarge, match="properties"):
        check_valid(Schema(SchemaType.STRING, b"", {"a": "x" * 70_000}), LIMIT)
    with pytest.raises(SchemaTooLarge, match="parts"):
        check_valid(Schema(SchemaType.AVRO, json.dumps(["int"] * NODES_MAX).encode()), LIMIT)
    with pytest.raises(SchemaTooLarge, match="nested"):
        check_valid(Schema(SchemaType.AVRO, b'{"items":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX), LIMIT)
    with pytest.raises(BadSchema):
        check_valid(Schema(SchemaType.AVRO, b"[" * 100_000), LIMIT)


def test_comparison_of_huge_unions_is_bounded() -> None:
    def huge(letter: str) -> Schema:
        branches = [record(A, name=f"{letter}{index}") for index in range(400)]
        return avro(("u", branches))

    check_valid(huge("x"), LIMIT)
    assert "steps" in (objection(Strategy.FULL, huge("y"), [huge("x")]) or "")


# -- names


def test_type_names() -> None:
    assert SchemaType.named("BYTES") is SchemaType.NONE
    assert SchemaType.named("LOCAL_DATE_TIME") is SchemaType.LOCAL_DATE_TIME
    with pytest.raises(BadSchema, match="not a schema type"):
        SchemaType.named("avro")


def test_older_strategy_names_map_to_newer() -> None:
    assert AUTO_UPDATE_STRATEGIES["AutoUpdateDisabled"] is Strategy.ALWAYS_INCOMPATIBLE
    assert set(AUTO_UPDATE_STRATEGIES.values()) == set(Strategy) - {Strategy.UNDEFINED}


def test_avro_library_is_imported_on_first_use() -> None:
    code = (
        "import sys, anabranch.node.node; from anabranch.broker.schemas.compatibility import check_valid;"
        "from anabranch.model.schema import Schema, SchemaType; check_valid(Schema(SchemaType.STRING), 9);"
        "assert not any(name.split('.')[0] in ('avro', 'fastavro') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("strategy", [one for one in Strategy if one.new_reads_old or one.old_reads_new])
def test_names_of_top_level_records_may_differ_and_nested_names_not(strategy: Strategy) -> None:
    def defined(top: str, nested: str) -> Schema:
        inner = {"type": "record", "name": nested, "fields": [{"name": "b", "type": "int"}]}
        again = {"name": "next", "type": ["null", top], "default": None}
        fields = [{"name": "a", "type": inner}, again]
        return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": top, "fields": fields}).encode())

    assert objection(strategy, defined("Renamed", "Inner"), [defined("Original", "Inner")]) is None
    refused = objection(strategy, defined("Original", "Other"), [defined("Original", "Inner")])
    assert refused is not None
    assert "name mismatch" in refused
