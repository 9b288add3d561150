"""What a task has sent to one segment, as a checksum that does not depend on how it was cut into entries. Pure.

A task's rows for a segment are stored in the order of their numbers, so a checksum that goes from row to row is the
same however an attempt cuts them into batches and entries. Each entry carries it as of its last row; the broker keeps
the last one of each producer. The next attempt finds it there, makes its own of what it would leave out, and compares.

Arrow is handed buffers and asked for them: where it makes arrays of Python's or numpy's values, or these of its own, it
loads pandas if that is installed, and every worker of Spark would pay for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as bad_struct
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from anabranch.protocol import pulsar_pb2 as pb

_NOTE = Struct("<BqQIII")
FORMAT = 1
_SHAPE = np.dtype([("sequence", "<i8"), ("value", "<i4"), ("key", "<i4")])


@dataclass(frozen=True, slots=True)
class RowChecksum:
    """Of the rows of one run of a task (a batch) in one segment, in order."""

    first: int  # sequence id of the run's first row, wherever that went
    rows: int = 0
    shape: int = 0  # checksums: sequence ids and lengths,
    values: int = 0  # bytes of values,
    keys: int = 0  # bytes of keys

    def with_rows(self, first: int, rows: Sequence[int], values: Any, keys: Any) -> RowChecksum:
        """And these rows, by their numbers in the columns, ascending; `first` is the sequence id of row 0."""
        if not len(rows):
            return self
        picked = np.asarray(rows, np.int64)
        value_lengths, value_bytes = _texts(_picked(values, picked))
        key_lengths, key_bytes = _texts(_picked(keys, picked)) if keys is not None else (-1, b"")
        shape = np.empty(len(picked), _SHAPE)
        shape["sequence"], shape["value"], shape["key"] = picked + first, value_lengths, key_lengths
        return RowChecksum(
            self.first,
            self.rows + len(picked),
            crc32c(shape.tobytes(), self.shape),
            crc32c(value_bytes, self.values),
            crc32c(key_bytes, self.keys),
        )

    def note(self) -> bytes:
        return _NOTE.pack(FORMAT, self.first, self.rows, self.shape, self.values, self.keys)

    def field(self) -> bytes:
        """The note as a field of an entry's metadata."""
        return pb.MessageMetadata(producer_note=self.note()).SerializePartialToString()


def read_note(note: bytes) -> RowChecksum | None:
    """None for what is no note of ours, or of a later form."""
    try:
        form, *found = _NOTE.unpack(note)
    except bad_struct:
        return None
    return RowChecksum(*found) if form == FORMAT else None


def _picked(column: Any, rows: Any) -> Any:
    """A slice where that is enough: it copies nothing."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return column.slice(int(rows[0]), len(rows))
    numbers = pa.py_buffer(np.ascontiguousarray(rows, np.int64))
    return column.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, numbers]))


def _texts(column: Any) -> tuple[Any, memoryview | bytes]:
    """Lengths (-1 for null), and all bytes one after the other."""
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if is_large else np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends).astype(np.int32)
    if column.null_count:
        lengths = np.where(_validity(column), lengths, -1)
    return lengths, b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])]


def _validity(column: Any) -> Any:
    """Per row: is there a value?"""
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    return np.unpackbits(bits, bitorder="little", count=column.offset + len(column))[column.offset :].astype(bool)
