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


def complaints(value: Any, schema: dict[str, Any], where: str = "", *, is_strict: bool = False) -> list[str]:
    """Where the value differs from the schema. `is_strict`: a field that the schema does not name is a difference."""
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_has_type(value, one) for one in named):
        return [f"{where}: {value!r} is no {' or '.join(named)}"]
    if value not in schema.get("enum", [value]):
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, dict):
        found = [f"{where}: no {key}" for key in schema.get("required", ()) if key not in value]
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, one in value.items():
            if (part := known.get(key, others)) is not None:
                found += complaints(one, part, f"{where}.{key}", is_strict=is_strict)
            elif is_strict:
                found.append(f"{where}: {key} is not in the schema")
        return found
    if isinstance(value, list):
        items = schema["items"]
        return [
            text
            for at, one in enumerate(value)
            for text in complaints(one, items, f"{where}[{at}]", is_strict=is_strict)
        ]
    return []


def _has_type(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
