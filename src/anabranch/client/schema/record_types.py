"""Python classes as Avro records: the definition of a dataclass or pydantic model, and conversion of its values.

| Python                               | Avro                   |   | Python         | Avro           |
|--------------------------------------|------------------------|---|----------------|----------------|
| `str` `bytes` `bool`                 | string, bytes, boolean |   | `list[T]`      | array          |
| `int`, `Annotated[int, "int"]`       | long, int              |   | `dict[str, T]` | map            |
| `float`, `Annotated[float, "float"]` | double, float          |   | an `Enum`      | enum, by names |
| `datetime`                           | long, timestamp-millis |   | `T | None`     | ["null", T]    |
| a dataclass or pydantic model        | record                 |   | a default      | default        |

All checks are made when the schema is created; a class that Avro cannot express is refused then.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from anabranch.client.errors import BadOption, SchemaMismatch

_INT_BITS = {"int": 31, "long": 63}
_ABSENT: Any = object()


class Shape(NamedTuple):
    """One type: its Avro definition, and the conversion of values to plain ones and back. Both raise SchemaMismatch."""

    avro: Any
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


class _Field(NamedTuple):
    name: str
    annotation: Any
    default: Any  # _ABSENT: none


def record_shape(cls: type, *, is_json: bool) -> Shape:
    """`is_json`: plain values are those of JSON, so bytes become base64 text; otherwise those of Avro."""
    if not is_record(cls):
        raise BadOption(f"{cls!r} is neither a dataclass nor a pydantic model")
    return _Shapes(is_json)._shape(cls, cls.__name__)


def is_record(cls: Any) -> bool:
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or hasattr(cls, "model_fields"))


_Records = dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]


class _Shapes:
    """The shapes of one definition. A record is defined at its first use and referred to by name afterwards."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[type, str] = {}
        self._records: _Records = {}

    def _shape(self, annotation: Any, where: str) -> Shape:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self._annotated(arguments, where)
        if origin in (typing.Union, types.UnionType):
            inner = [one for one in arguments if one is not types.NoneType]
            if len(inner) == 1 and len(arguments) == 2:
                return _optional(self._shape(inner[0], where))
        elif origin is list:
            return _array(self._shape(arguments[0], f"{where}[]"), where)
        elif origin is dict and arguments[0] is str:
            return _map(self._shape(arguments[1], f"{where}{{}}"), where)
        elif isinstance(annotation, type):
            if is_record(annotation):
                return self._record(annotation, where)
            if issubclass(annotation, Enum):
                return self._enum(annotation, where)
            if (made := self._scalar(annotation, where)) is not None:
                return made
        raise BadOption(f"{where}: Avro has no type for {annotation!r}")

    def _annotated(self, arguments: tuple[Any, ...], where: str) -> Shape:
        base, *notes = arguments
        for note in notes:
            if (base, note) in ((int, "int"), (int, "long")):
                return _integer(note, where)
            if (base, note) in ((float, "float"), (float, "double")):
                return Shape(note, _checked(where, (float, int), float), _checked(where, (float, int), float))
        return self._shape(base, where)

    def _scalar(self, kind: type, where: str) -> Shape | None:
        if kind is bool:
            return Shape("boolean", _checked(where, (bool,)), _checked(where, (bool,)))
        if kind is int:
            return _integer("long", where)
        if kind is float:
            return Shape("double", _checked(where, (float, int), float), _checked(where, (float, int), float))
        if kind is str:
            return Shape("string", _checked(where, (str,)), _checked(where, (str,)))
        if kind is bytes:
            taken = _checked(where, (bytes,))
            if self._is_json:
                return Shape("bytes", lambda value: base64.b64encode(taken(value)).decode(), _from_base64(where))
            return Shape("bytes", taken, taken)
        if kind is datetime:
            taken = _to_millis(where) if self._is_json else _instant(where)  # Avro libraries take it as it is
            return Shape({"type": "long", "logicalType": "timestamp-millis"}, taken, _from_millis(where))
        return None

    def _enum(self, cls: type[Enum], where: str) -> Shape:
        avro: Any = {"type": "enum", "name": cls.__name__, "symbols": [one.name for one in cls]}
        if cls in self._named:
            avro = cls.__name__
        self._named[cls] = cls.__name__

        def dump(value: Any) -> str:
            if not isinstance(value, cls):
                raise SchemaMismatch(f"{where} takes {cls.__name__}, not {type(value).__name__}")
            return value.name

        def load(plain: Any) -> Enum:
            try:
                return cls[plain]
            except KeyError as cause:
                raise SchemaMismatch(f"{where}: {plain!r} is not a {cls.__name__}") from cause

        return Shape(avro, dump, load)

    def _record(self, cls: type, where: str) -> Shape:
        known = self._records
        if cls in self._named:  # a record may contain itself, before its fields are known
            return Shape(cls.__name__, partial(_dump_later, known, cls), partial(_load_later, known, cls))
        if cls.__name__ in self._named.values():
            raise BadOption(f"{where}: two different classes have the name {cls.__name__}")
        self._named[cls] = cls.__name__
        shapes: dict[str, Shape] = {}
        fields: list[dict[str, Any]] = []
        defaults: dict[str, Any] = {}
        for name, annotation, default in _fields_of(cls):
            shape = shapes[name] = self._shape(annotation, f"{where}.{name}")
            field: dict[str, Any] = {"name": name, "type": shape.avro}
            if default is not _ABSENT:
                defaults[name] = None
                _set_default(field, None if default is None else shape.dump(default))
            fields.append(field)
        known[cls] = _dump_record(cls, shapes, where), _load_record(cls, shapes, frozenset(defaults), where)
        return Shape({"type": "record", "name": cls.__name__, "fields": fields}, *known[cls])


def _dump_later(known: _Records, cls: type, value: Any) -> Any:
    return known[cls][0](value)


def _load_later(known: _Records, cls: type, plain: Any) -> Any:
    return known[cls][1](plain)


def _fields_of(cls: type) -> list[_Field]:
    hints = typing.get_type_hints(cls, include_extras=True)
    if dataclasses.is_dataclass(cls):
        return [_Field(one.name, hints[one.name], _default_of(one)) for one in dataclasses.fields(cls) if one.init]
    found = []
    for name, info in cls.model_fields.items():  # type: ignore[attr-defined]  # a pydantic model
        default = _ABSENT if info.is_required() else info.get_default(call_default_factory=True)
        found.append(_Field(name, hints[name], default))
    return found


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return _ABSENT if field.default_factory is dataclasses.MISSING else field.default_factory()


def _set_default(field: dict[str, Any], plain: Any) -> None:
    """In Avro, the default of a union has the type of its first branch, and the default of bytes is Latin-1 text."""
    if isinstance(field["type"], list) and plain is not None:
        field["type"] = [field["type"][1], "null"]
    field["default"] = plain.decode("latin-1") if isinstance(plain, bytes) else plain


def _dump_record(cls: type, shapes: Mapping[str, Shape], where: str) -> Callable[[Any], Any]:
    dumps = [(name, shape.dump) for name, shape in shapes.items()]

    def dump(value: Any) -> dict[str, Any]:
        if not isinstance(value, cls):
            raise SchemaMismatch(f"{where} takes {cls.__name__}, not {type(value).__name__}")
        return {name: one(getattr(value, name)) for name, one in dumps}

    return dump


def _load_record(cls: type, shapes: Mapping[str, Shape], optional: frozenset[str], where: str) -> Callable[[Any], Any]:
    loads = [(name, shape.load) for name, shape in shapes.items()]
    required = shapes.keys() - optional

    def load(plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise SchemaMismatch(f"{where} is a record, the message has {type(plain).__name__}")
        if missing := sorted(required - plain.keys()):
            raise SchemaMismatch(f"{where}: the message has no {', '.join(missing)}")
        try:
            return cls(**{name: one(plain[name]) for name, one in loads if name in plain})
        except SchemaMismatch:
            raise
        except (ValueError, TypeError) as cause:  # validation of the class itself, as in pydantic models
            raise SchemaMismatch(f"{where}: {cause}") from cause

    return load


def _optional(inner: Shape) -> Shape:
    dump, load = inner.dump, inner.load
    return Shape(
        ["null", inner.avro],
        lambda value: None if value is None else dump(value),
        lambda plain: None if plain is None else load(plain),
    )


def _array(inner: Shape, where: str) -> Shape:
    dump, load = inner.dump, inner.load
    taken = _checked(where, (list, tuple))
    return Shape(
        {"type": "array", "items": inner.avro},
        lambda value: [dump(one) for one in taken(value)],
        lambda plain: [load(one) for one in taken(plain)],
    )


def _map(inner: Shape, where: str) -> Shape:
    dump, load = inner.dump, inner.load
    taken = _checked(where, (dict,))
    return Shape(
        {"type": "map", "values": inner.avro},
        lambda value: {name: dump(one) for name, one in taken(value).items()},
        lambda plain: {name: load(one) for name, one in taken(plain).items()},
    )


def _checked(where: str, kinds: tuple[type, ...], made: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise SchemaMismatch(f"{where} takes {kinds[0].__name__}, not {type(value).__name__}")
        return value if made is None else made(value)

    return check


def _integer(avro: str, where: str) -> Shape:
    limit = 1 << _INT_BITS[avro]
    taken = _checked(where, (int,))

    def check(value: Any) -> int:
        number: int = taken(value)
        if not -limit <= number < limit:
            raise SchemaMismatch(f"{where}: {number} does not fit into {avro}")
        return number

    return Shape(avro, check, check)


def _from_base64(where: str) -> Callable[[Any], bytes]:
    def load(plain: Any) -> bytes:
        try:
            return base64.b64decode(plain, validate=True)
        except (TypeError, binascii.Error) as cause:
            raise SchemaMismatch(f"{where} is not base64") from cause

    return load


def _instant(where: str) -> Callable[[Any], datetime]:
    def dump(value: Any) -> datetime:
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise SchemaMismatch(f"{where} takes a datetime with a time zone")
        return value.replace(microsecond=value.microsecond // 1000 * 1000)

    return dump


def _to_millis(where: str) -> Callable[[Any], int]:
    instant = _instant(where)
    return lambda value: round(instant(value).timestamp() * 1000)


def _from_millis(where: str) -> Callable[[Any], datetime]:
    def load(plain: Any) -> datetime:
        if isinstance(plain, datetime):  # Avro libraries read the logical type themselves
            return plain
        if not isinstance(plain, int):
            raise SchemaMismatch(f"{where} is a number of milliseconds, not {type(plain).__name__}")
        return datetime.fromtimestamp(plain / 1000, UTC)

    return load
