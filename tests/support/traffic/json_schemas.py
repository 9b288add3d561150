"""The part of JSON Schema that the OpenAPI document uses."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def complaints(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Where the value differs from the schema."""
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, _TYPES[one]) for one in named):
        return [f"{where}: {value!r} is no {' or '.join(named)}"]
    if isinstance(value, dict):
        found = [f"{where}: no {key}" for key in schema.get("required", ()) if key not in value]
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, one in value.items():
            if (part := known.get(key, others)) is not None:
                found += complaints(one, part, f"{where}.{key}")
        return found
    if isinstance(value, list):
        return [text for at, one in enumerate(value) for text in complaints(one, schema["items"], f"{where}[{at}]")]
    return []
