"""Schemas of messages: `schema=Json(Order)`, `Avro(Order)`, `String()`, `Int64()`, `Auto()` …

This module only exports names; see `anabranch.client.schema`.
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
