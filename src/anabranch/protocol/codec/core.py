"""Selects the implementation of the inner loops: the C extension if it was built, else Python.

`python` and `packing` define what the loops do. With Python, many rows at once are decoded by whole columns (`vectors`)
if Arrow is loaded already, which is the case for callers that ask for Arrow's columns.
"""

from __future__ import annotations

import importlib
import os
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from anabranch.protocol.codec import packing, python
from anabranch.protocol.codec.column import Column, loose, rows_of
from anabranch.protocol.codec.columns import Body, Columns, Properties, Texts
from anabranch.protocol.codec.rows import Listing, Rows, key_of
from anabranch.protocol.entry import Bytes

UNLIMITED = (1 << 31) - 1
VECTOR_ROWS_MIN = 256  # with fewer rows, one after the other is as fast


@dataclass(frozen=True, slots=True)
class Loops:
    """One implementation. `given` converts a column to what its loops take."""

    name: str
    opened: Callable[[Bytes, int], Rows]
    decode: Callable[[Sequence[Body]], Columns]
    encode: Callable[[Columns, Sequence[int]], bytes | bytearray]
    given: Callable[[Column, str], Any]
    pack: Callable[..., list[packing.Batch]]
    arranged: Callable[[memoryview, int], tuple[Any, list[int]]]
    route: Callable[..., bytes | bytearray]
    key_hashes: Callable[[Any], bytes | bytearray]


@cache
def _by_columns() -> Callable[[Sequence[Body]], Columns | None] | None:
    try:
        from anabranch.protocol.codec import vectors
    except ImportError:  # Arrow without numpy
        return None
    return vectors.decode


def _decode_in_python(bodies: Sequence[Body]) -> Columns:
    by_columns = None
    if "pyarrow" in sys.modules and sum(count for _, count in bodies) >= VECTOR_ROWS_MIN:
        by_columns = _by_columns()
    found = None if by_columns is None else by_columns(bodies)
    return python.decode(bodies) if found is None else found


PYTHON = Loops(
    "python",
    python.opened,
    _decode_in_python,
    python.encode,
    rows_of,
    packing.pack,
    packing.arranged,
    packing.route,
    packing.key_hashes,
)


def _native() -> Loops | None:
    try:
        found: Any = importlib.import_module("anabranch.protocol.codec._native")
    except ImportError:  # not built, because no compiler was found at installation
        return None

    def decode(bodies: Sequence[Body]) -> Columns:
        rows, per_body, index, key, is_base64, value, times, sequences, pairs = found.decode(bodies)
        properties = None if pairs is None else Properties(pairs[0], Texts(*pairs[1]), Texts(*pairs[2]))
        return Columns(rows, per_body, index, Texts(*key), is_base64, Texts(*value), times, sequences, properties)

    def encode(columns: Columns, rows: Sequence[int]) -> bytes | bytearray:
        pairs = columns.properties
        made = found.pack(
            _loose(columns.value, columns.rows),
            _loose(columns.key, columns.rows),
            columns.key_is_base64,
            columns.event_time,
            None
            if pairs is None
            else (pairs.offsets, _loose(pairs.names, _last(pairs)), _loose(pairs.values, _last(pairs))),
            0,
            columns.sequence_id,
            array("i", rows),
            0,
            len(rows),
            UNLIMITED,
            UNLIMITED,
        )
        return made[0][0] if made else b""

    class NativeRows:
        """A validated body; its content is decoded on demand."""

        __slots__ = ("_data", "_messages", "count")

        def __init__(self, data: Bytes, messages: int) -> None:
            self.count: int = found.counted(data, messages)
            self._data, self._messages = data, messages

        def values(self) -> list[bytes | None]:
            values: list[bytes | None] = found.values_of(self._data, self._messages)
            return values

        def keys(self) -> list[str | bytes | None]:
            return _given(*found.keys_of(self._data, self._messages))

        def listing(self) -> Listing:
            indexes, values, keys, base64, sequences, times, properties = found.listed(self._data, self._messages)
            return Listing(indexes, values, _given(keys, base64), sequences, times, properties)

        def columns(self) -> Columns:
            return decode((Body(self._data, self._messages),))

    return Loops("native", NativeRows, decode, encode, loose, found.pack, found.arranged, found.route, found.key_hashes)


def _given(keys: list[Any], base64: list[int]) -> list[str | bytes | None]:
    """Keys as the sender gave them."""
    for row in base64:
        keys[row] = key_of(keys[row], True)
    return keys


def _loose(texts: Texts, rows: int) -> tuple[Any, ...]:
    return texts.offsets, 4, texts.data, texts.validity, 0, rows, True


def _last(pairs: Properties) -> int:
    return memoryview(pairs.names.offsets).nbytes // 4 - 1


NATIVE = _native()
_is_unwanted = os.environ.get("ANABRANCH_CODEC") == "python" or os.environ.get("ANABRANCH_NATIVE") == "off"
loops = PYTHON if NATIVE is None or _is_unwanted else NATIVE
IMPLEMENTATION = loops.name
opened = loops.opened
decode = loops.decode
encode = loops.encode
