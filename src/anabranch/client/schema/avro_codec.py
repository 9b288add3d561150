"""Plain values as Avro bytes and back, with the Avro library that is installed.

`fastavro` is compiled and about nine times as fast as Apache's `avro` package, so it is used when it is installed
(`pip install anabranch[avro]`). Otherwise `avro`, which the broker needs anyway, does the same. A test checks that both
produce the same bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from anabranch.client.errors import SchemaMismatch

Definition = Any


def avro_writer(definition: Definition, *, library: str | None = None) -> Callable[[Any], bytes]:
    if (library or _library()) == "fastavro":
        import fastavro

        parsed = fastavro.parse_schema(definition)

        def write(plain: Any) -> bytes:
            out = io.BytesIO()
            try:
                fastavro.schemaless_writer(out, parsed, plain)
            except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as cause:
                raise SchemaMismatch(f"the value does not fit its Avro schema: {cause}") from cause
            return out.getvalue()

        return write

    import avro.errors
    import avro.io
    import avro.schema

    writer = avro.io.DatumWriter(avro.schema.parse(json.dumps(definition)))

    def write_slowly(plain: Any) -> bytes:
        out = io.BytesIO()
        try:
            writer.write(plain, avro.io.BinaryEncoder(out))
        except (avro.errors.AvroException, ValueError, TypeError) as cause:
            raise SchemaMismatch(f"the value does not fit its Avro schema: {cause}") from cause
        return out.getvalue()

    return write_slowly


def avro_reader(
    written: Definition, wanted: Definition | None = None, *, library: str | None = None
) -> Callable[[bytes], Any]:
    """A decoder from the schema `written` to the schema `wanted`, by Avro's resolution rules. The name of the outermost
    record is ignored, because the broker has already checked compatibility."""
    if wanted is not None:
        written = _renamed(written, wanted)
    if (library or _library()) == "fastavro":
        return _fast_reader(written, wanted)
    return _slow_reader(written, wanted)


def _fast_reader(written: Definition, wanted: Definition | None) -> Callable[[bytes], Any]:
    import fastavro
    from fastavro.read import SchemaResolutionError

    # Parsed separately, because both may define a record of the same name.
    source = fastavro.parse_schema(written)
    target = None if wanted is None else fastavro.parse_schema(wanted)

    def read(data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            plain = fastavro.schemaless_reader(stream, source, target)
        except (SchemaResolutionError, EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError) as cause:
            raise SchemaMismatch(
                f"the message does not fit its Avro schema: {cause or type(cause).__name__}"
            ) from cause
        return _all_read(plain, stream, data)

    return read


def _slow_reader(written: Definition, wanted: Definition | None) -> Callable[[bytes], Any]:
    import avro.errors
    import avro.io
    import avro.schema

    source = avro.schema.parse(json.dumps(written))
    reader = avro.io.DatumReader(source, source if wanted is None else avro.schema.parse(json.dumps(wanted)))

    def read(data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            plain = reader.read(avro.io.BinaryDecoder(stream))
        except (avro.errors.AvroException, ValueError, TypeError, IndexError, KeyError, AssertionError) as cause:
            raise SchemaMismatch(
                f"the message does not fit its Avro schema: {cause or type(cause).__name__}"
            ) from cause
        return _all_read(plain, stream, data)

    return read


def _all_read(plain: Any, stream: io.BytesIO, data: bytes) -> Any:
    if stream.tell() != len(data):
        raise SchemaMismatch(f"the message has {len(data) - stream.tell()} bytes more than its Avro schema says")
    return plain


def _renamed(written: Definition, wanted: Definition) -> Definition:
    if not (isinstance(written, dict) and isinstance(wanted, dict) and "name" in written and "name" in wanted):
        return written
    renamed = {name: value for name, value in written.items() if name != "namespace"} | {"name": wanted["name"]}
    return renamed | ({"namespace": wanted["namespace"]} if "namespace" in wanted else {})


def _library() -> str:
    from importlib.util import find_spec

    return "fastavro" if find_spec("fastavro") is not None else "avro"
