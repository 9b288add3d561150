"""Values as text or as columns of the topic's schema. Knows Avro and JSON schemas and what Spark calls their types.

JSON values are objects with the fields of the (Avro-described) schema; Avro values are read with the schema of the
version they were written with and brought to the newest one, as Avro's rules say.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from anabranch.model.errors import Error
from anabranch.protocol import codec
from anabranch.spark.client.access import Access, BadSparkOption
from anabranch.spark.client.cluster_client import ClusterClient, cluster_of
from anabranch.spark.client.entry_fetcher import Stored
from anabranch.spark.columns import COLUMNS
from anabranch.spark.source.arrow_rows import record_batch

_PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}


class BadValue(Error):
    """A value that is not what the topic's schema says."""

    code = "bad-value"


class Form:
    TEXT, JSON, AVRO = "text", "json", "avro"


@dataclass(frozen=True, slots=True)
class ValueReader:
    """How values become columns. Travels to executors."""

    form: str
    access: Access
    topic: str = ""
    definition: str = ""  # the newest schema

    def record_batch(
        self, found: codec.Run, entries: Sequence[Stored], topic: str, segment: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        if self.form == Form.TEXT:
            return record_batch(found, entries, topic, segment, schema)
        ours = pa.schema([field for field in schema if field.name in COLUMNS])
        plain = record_batch(found, entries, topic, segment, ours)
        rows = self._objects(found)
        arrays = []
        for field in schema:
            if field.name in COLUMNS:
                arrays.append(plain.column(field.name))
                continue
            name = field.name
            values = [None if row is None else row.get(name, row.get(name.removeprefix("value_"))) for row in rows]
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as cause:
                raise BadValue(f"{topic}: a value does not fit column {name}: {cause}") from cause
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _objects(self, found: codec.Run) -> list[dict[str, Any] | None]:
        values, entries = found.values(), found.entries()
        try:
            if self.form == Form.JSON:
                return [None if value is None else json.loads(value) for value in values]
            versions = found.schema_versions
            return [
                None if value is None else self._avro(versions[entries[row]])(value) for row, value in enumerate(values)
            ]
        except Error:
            raise
        except Exception as cause:
            raise BadValue(f"{self.topic}: a value is not what its schema says: {cause}") from cause

    def _avro(self, version: bytes | None) -> Callable[[bytes], dict[str, Any]]:
        return _avro_reader(self.access, self.topic, self.definition, version)


@lru_cache(maxsize=256)
def _avro_reader(
    access: Access, topic: str, definition: str, version: bytes | None
) -> Callable[[bytes], dict[str, Any]]:
    from avro.io import BinaryDecoder, DatumReader
    from avro.schema import parse

    newest = parse(definition)
    written = None if version is None else cluster_of(access).schema(topic, version)
    reader = DatumReader(parse(written.schema_data.decode()) if written is not None else newest, newest)

    def read(value: bytes) -> dict[str, Any]:
        made = reader.read(BinaryDecoder(io.BytesIO(value)))
        if not isinstance(made, dict):
            raise BadValue(f"{topic}: a value is no record")
        return made

    return read


def value_reader(cluster: ClusterClient, access: Access, topics: Sequence[str]) -> tuple[ValueReader, StructType]:
    """The newest schema of the topic: how to read its values, and their columns."""
    if len(topics) != 1:
        raise BadSparkOption("valueFormat=schema reads one topic: schemas of several may differ")
    found = cluster.schema(topics[0])
    kind = "" if found is None else type(found).Type.Name(found.type)
    if found is None or kind not in ("Json", "Avro"):
        raise BadSparkOption(f"{topics[0]} has no JSON or Avro schema (found: {kind or 'none'})")
    definition = json.loads(found.schema_data)
    fields = spark_type(definition)
    if not isinstance(fields, StructType):
        raise BadSparkOption(f"the schema of {topics[0]} is no record")
    form = Form.JSON if kind == "Json" else Form.AVRO
    return ValueReader(form, access, topics[0], json.dumps(definition)), fields


def spark_type(definition: Any) -> DataType:
    """Avro's type as Spark calls it; BadSparkOption for what has no counterpart."""
    if isinstance(definition, str):
        definition = {"type": definition}
    if isinstance(definition, list):
        others = [one for one in definition if one != "null"]
        if len(others) != 1:
            raise BadSparkOption(f"a union of several types has no column type: {definition}")
        return spark_type(others[0])
    kind = definition.get("type")
    if isinstance(kind, dict | list):
        return spark_type(kind)
    if kind == "record":
        return StructType([StructField(one["name"], spark_type(one["type"]), True) for one in definition["fields"]])
    if kind == "array":
        return ArrayType(spark_type(definition["items"]), True)
    if kind == "map":
        return MapType(StringType(), spark_type(definition["values"]), True)
    if kind not in _PLAIN:
        raise BadSparkOption(f"type {kind!r} of the topic's schema has no column type")
    return _PLAIN[kind]
