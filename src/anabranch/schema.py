"""`anabranch.schema`: what messages look like. `schema=Json(Order)`, `Avro(Order)`, `String()`, `Int64()`, `Auto()` …

The names only; see `anabranch.client.schema.schema`.
"""

from __future__ import annotations

from anabranch.client.schema.auto import Auto, KeyValue
from anabranch.client.schema.json_avro import Avro, Json
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
)

__all__ = [
    "Auto",
    "Avro",
    "Boolean",
    "Bytes",
    "Float32",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Json",
    "KeyValue",
    "Schema",
    "String",
]
