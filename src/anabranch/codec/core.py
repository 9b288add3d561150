"""Which implementation of the inner loops runs: the C extension where it was built, its Python twin otherwise.

Knows only how to choose and how to call; `python` and `packing` say what the loops do.
"""

from __future__ import annotations

import importlib
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.codec import packing, python
from anabranch.codec.column import Column, loose, rows_of
from anabranch.codec.columns import Body, Columns, Properties, Texts

UNLIMITED = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Loops:
    """One implementation. `given` makes of a column what its loops take."""

    name: str
    decode: Callable[[Sequence[Body]], Columns]
    encode: Callable[[Columns, Sequence[int]], bytes | bytearray]
    given: Callable[[Column, str], Any]
    pack: Callable[..., list[packing.Batch]]
    arranged: Callable[[memoryview, int], tuple[Any, list[int]]]
    route: Callable[..., bytes | bytearray]
    key_hashes: Callable[[Any], bytes | bytearray]


PYTHON = Loops(
    "python",
    python.decode,
    python.encode,
    rows_of,
    packing.pack,
    packing.arranged,
    packing.route,
    packing.key_hashes,
)


def _native() -> Loops | None:
    try:
        found: Any = importlib.import_module("anabranch.codec._native")
    except ImportError:  # no compiler when it was installed: slower, and the same in every other way
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

    return Loops("native", decode, encode, loose, found.pack, found.arranged, found.route, found.key_hashes)


def _loose(texts: Texts, rows: int) -> tuple[Any, ...]:
    return texts.offsets, 4, texts.data, texts.validity, 0, rows, True


def _last(pairs: Properties) -> int:
    return memoryview(pairs.names.offsets).nbytes // 4 - 1


NATIVE = _native()
_is_unwanted = os.environ.get("ANABRANCH_CODEC") == "python" or os.environ.get("ANABRANCH_NATIVE") == "off"
loops = PYTHON if NATIVE is None or _is_unwanted else NATIVE
IMPLEMENTATION = loops.name
decode = loops.decode
encode = loops.encode
