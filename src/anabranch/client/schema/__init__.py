"""Schemas: values to bytes and back. Only `schema_resolver` uses connections.

| module | what it is |
|---|---|
| `schema` | the `Schema` protocol and the schemas of single values: bytes, text, numbers |
| `json_avro` | `Json` and `Avro`: dataclasses and pydantic models |
| `record_types` | Python classes as Avro records |
| `avro_codec` | Avro bytes, with fastavro or the avro package |
| `auto` | `Auto`: reads each message by the schema version that it names |
| `schema_resolver` | fetches schema versions from the broker while messages wait |
"""
