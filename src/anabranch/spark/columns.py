"""Columns of a topic as Spark and Arrow types. A schema given by the user is a projection of them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.options import Metadata, SourceOptions, ValueFormat

COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "key": (StringType(), pa.string()),
    "value": (BinaryType(), pa.binary()),
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "topic": (StringType(), pa.string()),
    "segment": (LongType(), pa.int64()),
    "message_id": (BinaryType(), pa.binary()),
    "publish_time": (TimestampType(), pa.timestamp("us", "UTC")),
    "event_time": (TimestampType(), pa.timestamp("us", "UTC")),
    "producer_name": (StringType(), pa.string()),
    "sequence_id": (LongType(), pa.int64()),
    "key_bytes": (BinaryType(), pa.binary()),
}
BASIC = ("key", "value", "publish_time", "event_time")


def default_schema(options: SourceOptions, fields: StructType | None = None) -> StructType:
    """What a query gets that names no schema; `fields` are the columns of the values where they have some."""
    names = [name for name in COLUMNS if name != "key_bytes"]
    if options.metadata is Metadata.NONE:
        names = ["key", "value"]
    elif options.metadata is Metadata.BASIC:
        names = list(BASIC)
    if not options.has_properties and "properties" in names:
        names.remove("properties")
    if options.has_key_bytes:
        names.append("key_bytes")
    made = StructType()
    for name in names:
        if name == "value" and fields is not None:
            for one in fields.fields:
                made = made.add(StructField(free_name(one.name), one.dataType, True))
        elif name == "value" and options.value_format is ValueFormat.STRING:
            made = made.add(StructField("value", StringType(), True))
        else:
            made = made.add(StructField(name, COLUMNS[name][0], True))
    return made


def free_name(name: str) -> str:
    """The name of a value's field beside our own columns."""
    return f"value_{name}" if name in COLUMNS and name != "value" else name


def check_projection(asked: StructType, options: SourceOptions, fields: StructType | None = None) -> None:
    """A user's schema may name any of the columns, with their types."""
    known = {name: kind for name, (kind, _) in COLUMNS.items()}
    if fields is not None:
        known.pop("value")
        known |= {free_name(one.name): one.dataType for one in fields.fields}
    elif options.value_format is ValueFormat.STRING:
        known["value"] = StringType()
    for one in asked.fields:
        if one.name not in known:
            raise BadSparkOption(f"there is no column {one.name}; there are {', '.join(known)}")
        wanted = known[one.name]
        if one.dataType != wanted and fields is None:
            raise BadSparkOption(
                f"column {one.name} is {wanted.simpleString()}, the schema says {one.dataType.simpleString()}"
            )
