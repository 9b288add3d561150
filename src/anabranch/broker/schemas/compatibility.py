"""Whether a schema is valid, and whether it may follow earlier ones. Avro's rules are those of Apache's library.

| type | rule |
|---|---|
| AVRO, JSON (with Avro definitions) | reader R can read what writer W wrote, in the directions of the strategy |
| KEY_VALUE | key and value each by their type; the same encoding |
| all others | the same definition |

The library is imported for the first Avro definition, so brokers without schemas do not load it. Definitions come from
clients, so the work of the library is bounded: the longest check takes seconds. Callers run it off the event loop.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from anabranch.model.schema import (
    KEY_VALUE_ENCODING,
    BadSchema,
    Schema,
    SchemaType,
    Strategy,
    key_value_parts,
    parse_json,
)

PROPERTIES_BYTES_MAX = 64 * 1024
NODES_MAX = 30_000  # values in one JSON definition
DEPTH_MAX = 100
PAIRS_MAX = 100_000  # comparisons of two parts; two unions make the product of their branches
REASONS_SHOWN = 3
PARSED_KEPT = 64

AVRO_FORM = (SchemaType.AVRO, SchemaType.JSON)


class SchemaTooLarge(BadSchema):
    code = "schema-too-large"


# -- validity


def check_size(schema: Schema, bytes_max: int) -> None:
    """The cheap part of `check_valid`. After it, parsing the definition takes milliseconds at most."""
    if len(schema.data) > bytes_max:
        raise SchemaTooLarge(f"the definition has {len(schema.data)} bytes, at most {bytes_max} are allowed")
    if sum(len(name) + len(value) for name, value in schema.properties.items()) > PROPERTIES_BYTES_MAX:
        raise SchemaTooLarge(f"the schema's properties have more than {PROPERTIES_BYTES_MAX} bytes")


def check_valid(schema: Schema, bytes_max: int) -> None:
    """Raises BadSchema."""
    check_size(schema, bytes_max)
    match schema.type:
        case SchemaType.AUTO_CONSUME:
            raise BadSchema("AUTO_CONSUME is a request of consumers, not a schema")
        case SchemaType.AVRO:
            _parse_avro(schema.data)
        case SchemaType.JSON:
            if not _is_json_schema_form(schema.data):
                _parse_avro(schema.data)
        case SchemaType.PROTOBUF:
            _bounded_json(schema.data)
        case SchemaType.PROTOBUF_NATIVE:
            _check_protobuf(schema.data)
        case SchemaType.KEY_VALUE:
            for part in key_value_parts(schema):
                if part.type in (SchemaType.KEY_VALUE, SchemaType.AUTO_CONSUME):
                    raise BadSchema(f"a KEY_VALUE schema cannot hold one of type {part.type.name}")
                check_valid(part, bytes_max)


def _bounded_json(data: bytes) -> Any:
    value = parse_json(data)
    nodes = 0
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        nodes += len(level)
        if nodes > NODES_MAX:
            raise SchemaTooLarge(f"the definition has more than {NODES_MAX} parts")
        level = [child for one in level for child in _children(one)]
        if not level:
            return value
    raise SchemaTooLarge(f"the definition is nested deeper than {DEPTH_MAX}")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _is_json_schema_form(data: bytes) -> bool:
    """Very old JSON clients send JSON Schema; such definitions are compared for equality."""
    value = _bounded_json(data)
    return isinstance(value, dict) and value.get("type") == "object"


def _check_protobuf(data: bytes) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    value = _bounded_json(data)
    names = ("fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName")
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in names):
        raise BadSchema(f"a PROTOBUF_NATIVE definition is an object with the strings {', '.join(names)}")
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(value["fileDescriptorSet"], validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise BadSchema("fileDescriptorSet is not a base64 set of protobuf file descriptors") from error
    root = next((file for file in files.file if file.name == value["rootFileDescriptorName"]), None)
    if root is None:
        raise BadSchema(f"no file {value['rootFileDescriptorName']!r} among the descriptors")
    message = value["rootMessageTypeName"].removeprefix(f"{root.package}." if root.package else "")
    if message.partition(".")[0] not in {one.name for one in root.message_type}:
        raise BadSchema(f"no message {value['rootMessageTypeName']!r} in {root.name}")


@lru_cache(maxsize=PARSED_KEPT)
def _parse_avro(data: bytes) -> Any:
    from avro.schema import make_avsc_object

    # Java spells nested classes Outer$Inner, which Avro's grammar forbids and Java's library lets pass.
    value = _without_logical_types(_bounded_json(data.replace(b"$", b"_")))
    try:
        return make_avsc_object(value)
    except Exception as error:  # the library raises many types on malformed input
        raise BadSchema(f"not an Avro schema: {_first_line(error)}") from error


def _without_logical_types(value: Any) -> Any:
    """Logical types do not affect compatibility, and the library warns on stderr about unknown ones."""
    if isinstance(value, dict):
        return {name: _without_logical_types(child) for name, child in value.items() if name != "logicalType"}
    return [_without_logical_types(child) for child in value] if isinstance(value, list) else value


# -- compatibility


def objection(strategy: Strategy, new: Schema, existing: Sequence[Schema]) -> str | None:
    """Why `new` may not follow `existing` (oldest first, without deleted ones); None if it may."""
    assert strategy is not Strategy.UNDEFINED, "the caller knows the level above"
    if not existing or strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return "no new schema is accepted here (ALWAYS_INCOMPATIBLE)"
    for old in reversed(existing if strategy.is_transitive else existing[-1:]):
        reason = _clash(strategy, new, old)
        if reason is not None:
            return reason if old.type is not new.type else f"{reason} ({strategy})"
    return None


def reader_objection(strategy: Strategy, reader: Schema, existing: Sequence[Schema]) -> str | None:
    """Why a consumer with this schema cannot read the topic; None if it can. Only reading counts, whatever the strategy
    says about writing. With a strategy over all versions it must be able to read all of them."""
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        known = {old.digest for old in existing}
        return None if reader.digest in known else "only the schemas of the topic are accepted (ALWAYS_INCOMPATIBLE)"
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    for old in reversed(existing if must_read_all(strategy) else existing[-1:]):
        reason = _clash(Strategy.BACKWARD, reader, old)
        if reason is not None:
            return f"the consumer's schema does not fit the topic's: {reason}"
    return None


def must_read_all(strategy: Strategy) -> bool:
    """Whether a consumer must be able to read all versions, not only the latest."""
    return strategy in (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)


def _clash(strategy: Strategy, new: Schema, old: Schema) -> str | None:
    if new.type is not old.type:
        return f"exists schema type {old.type.name}, new schema type {new.type.name}"
    if new.digest == old.digest:
        return None
    if new.type is SchemaType.KEY_VALUE:
        return _pair_clash(strategy, new, old)
    if new.type not in AVRO_FORM:
        return f"schemas of type {new.type.name} must be the same"
    if new.type is SchemaType.JSON and (_is_json_schema_form(new.data) or _is_json_schema_form(old.data)):
        return "definitions in JSON Schema must be the same"
    reason = _unreadable(new, old, "new schema cannot read data of the old one") if strategy.new_reads_old else None
    if reason is None and strategy.old_reads_new:
        reason = _unreadable(old, new, "old schema cannot read data of the new one")
    return reason


def _pair_clash(strategy: Strategy, new: Schema, old: Schema) -> str | None:
    encodings = [one.properties.get(KEY_VALUE_ENCODING, "INLINE") for one in (old, new)]
    if encodings[0] != encodings[1]:
        return f"exists key-value encoding {encodings[0]}, new {encodings[1]}"
    pairs = zip(("key", "value"), key_value_parts(new), key_value_parts(old), strict=True)
    for part, mine, theirs in pairs:
        reason = _clash(strategy, mine, theirs)
        if reason is not None:
            return f"{part}: {reason}"
    return None


def _unreadable(reader: Schema, writer: Schema, headline: str) -> str | None:
    from avro.compatibility import SchemaCompatibilityType

    reading, writing = _parse_avro(reader.data), _parse_avro(writer.data)
    try:
        result = _checker()().get_compatibility(reading, writing)
    except Exception as error:  # too large, too deep or unknown to the library: not compatible as far as known
        return f"{headline}: {_first_line(error)}"
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = sorted({kind.value.replace("_", " ") for kind in result.incompatibilities})
    places = sorted(result.locations)[:REASONS_SHOWN]
    details = sorted(result.messages)[:REASONS_SHOWN]
    return f"{headline}: {', '.join(kinds)} at {', '.join(places)}: {'; '.join(details)}"


@lru_cache(maxsize=1)
def _checker() -> Any:
    """The library's checker with a bound on its steps. Made on first use, because its base class is imported late."""
    from avro.compatibility import ReaderWriterCompatibilityChecker

    class BoundedChecker(ReaderWriterCompatibilityChecker):
        pairs = 0
        _is_top = True

        def get_compatibility(self, *args: Any, **options: Any) -> Any:
            self.pairs += 1
            if self.pairs > PAIRS_MAX:
                raise SchemaTooLarge(f"comparing the two takes more than {PAIRS_MAX} steps")
            return super().get_compatibility(*args, **options)

        def calculate_compatibility(self, reader: Any, writer: Any, location: list[str]) -> Any:
            """Top-level records may have different names, as in Pulsar. Nested named types follow Avro's rules."""
            is_top, self._is_top = self._is_top, False
            if is_top and reader.type == writer.type == "record":
                return self.check_reader_writer_record_fields(reader, writer, location)
            return super().calculate_compatibility(reader, writer, location)

    return BoundedChecker


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
