"""Entries as Arrow rows: which column comes from which field, and the sortable message id.

A message id is 28 bytes, big-endian: segment, ledger, entry (8 each), number in the batch (4). Within a topic ids sort
in the order of each key's messages, because the segments after a split or merge have higher numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.client.messages.compression import unpacked
from anabranch.model.position import Position
from anabranch.protocol import codec
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes
from anabranch.spark.client.entry_fetcher import Stored

_ID = np.dtype([("segment", ">i8"), ("ledger", ">i8"), ("entry", ">i8"), ("index", ">i4")])
ID_BYTES = _ID.itemsize


def decode(entries: Sequence[Stored]) -> codec.Run:
    return codec.read([one.payload for one in entries], opened=_opened, verify=False)


def _opened(kind: int, size_bytes: int, data: memoryview) -> Bytes:
    of = pb.MessageMetadata(uncompressed_size=size_bytes)
    of.compression = kind  # type: ignore[assignment]  # a number of the wire
    return unpacked(of, data)


def record_batch(
    found: codec.Run, entries: Sequence[Stored], topic: str, segment: int, schema: pa.Schema
) -> pa.RecordBatch:
    """The rows as this schema wants them; columns that it does not name are never built."""
    arrays = [_fitting(_column(found, entries, topic, segment, field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(found: codec.Run, entries: Sequence[Stored], topic: str, segment: int, name: str) -> Any:
    match name:
        case "topic":
            return _same(topic.encode(), len(found), pa.string())
        case "segment":
            numbers = pa.py_buffer(np.full(len(found), segment, np.int64))
            return pa.Array.from_buffers(pa.int64(), len(found), [None, numbers])
        case "message_id":
            return message_ids(found, [one.position for one in entries], segment)
        case _:
            return found.arrow(name)


def _fitting(array: Any, kind: pa.DataType) -> Any:
    return array if array.type == kind else array.cast(kind)


def message_ids(found: codec.Run, positions: Sequence[Position], segment: int) -> Any:
    """One id per row."""
    number = np.frombuffer(found.entries(), np.int32)
    made = np.empty(len(found), _ID)
    made["segment"] = segment
    made["ledger"] = np.fromiter((one.ledger for one in positions), np.int64, len(positions))[number]
    made["entry"] = np.fromiter((one.entry for one in positions), np.int64, len(positions))[number]
    made["index"] = np.frombuffer(found.columns.index, np.int32)
    return _equally_long(made.tobytes(), ID_BYTES, len(found), pa.binary())


def _same(text: bytes, rows: int, kind: pa.DataType) -> Any:
    """The same in every row. (`pa.repeat` wants a scalar, and to make one Arrow loads pandas.)"""
    return _equally_long(text * rows, len(text), rows, kind)


def _equally_long(data: bytes, size_bytes: int, rows: int, kind: pa.DataType) -> Any:
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(size_bytes)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
