"""A run of entries: the columns of its messages, and the facts of each entry.

Uses the layout of Arrow's buffers and imports pyarrow only on demand. It avoids `pyarrow.array` and `pyarrow.scalar`,
because these import pandas, which takes a Spark worker longer than its first batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from anabranch.protocol.codec.columns import NO_SEQUENCE, Columns, Properties, Texts
from anabranch.protocol.codec.python import texts_of
from anabranch.protocol.codec.rows import key_of
from anabranch.protocol.entry import Bytes

NAMES = (
    "key", "key_bytes", "value", "publish_time", "event_time", "sequence_id", "producer_name", "properties",
    "batch_index", "entry", "schema_version",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows are in the order of the entries and of their messages. Slots emptied by compaction have no row."""

    columns: Columns
    numbers: Sequence[int]  # per body of `columns`: its entry in the run
    # per entry of the run
    publish_times: Sequence[int]
    producer_names: Sequence[str]
    sequence_ids: Sequence[int]
    batch_sizes: Sequence[int]  # 0: not a batch
    schema_versions: Sequence[bytes | None]
    chunked: Sequence[int]  # entries that are pieces of chunked messages, for the caller to reassemble

    def __len__(self) -> int:
        return self.columns.rows

    # -- as Python objects, one per row

    def entries(self) -> array[int]:
        """The entry of each row."""
        found = array("i")
        for number, count in zip(self.numbers, self.columns.rows_per_body, strict=True):
            found.extend(array("i", (number,)) * count)
        return found

    def batch_indexes(self) -> list[int]:
        """Batch index of each row; -1 for an unbatched message."""
        indexes: list[int] = memoryview(self.columns.index).cast("B").cast("i").tolist()
        sizes = self.batch_sizes
        if all(sizes):
            return indexes
        return [index if sizes[number] else -1 for number, index in zip(self.entries(), indexes, strict=True)]

    def message_sequence_ids(self) -> list[int]:
        found = longs(self.columns.sequence_id)
        if NO_SEQUENCE not in found:
            return found
        own = self.sequence_ids
        return [own[number] if one == NO_SEQUENCE else one for number, one in zip(self.entries(), found, strict=True)]

    def event_times(self) -> list[int]:
        """Milliseconds; 0 if there is none."""
        return longs(self.columns.event_time)

    def values(self) -> list[bytes | None]:
        return pieces(self.columns.value)

    def keys(self) -> list[str | bytes | None]:
        """Keys as the sender gave them: text or bytes."""
        return keys_of(self.columns)

    def properties(self) -> list[dict[str, str]]:
        return properties_of(self.columns)

    # -- as Arrow

    def to_arrow(self, names: Sequence[str] = NAMES) -> Any:
        """A `pyarrow.RecordBatch` of these columns."""
        import pyarrow as pa

        return pa.RecordBatch.from_arrays([self.arrow(name) for name in names], names=list(names))

    def arrow(self, name: str) -> Any:
        """One column as a `pyarrow.Array`, without copying wherever Arrow has the same layout.

        `key` is text, and null if the key is not UTF-8; `key_bytes` has every key. Times are UTC.
        """
        import pyarrow as pa

        columns, rows = self.columns, self.columns.rows
        match name:
            case "key":
                return self._text_keys(pa)
            case "key_bytes":
                if columns.key_is_base64 is not None:
                    return pa.array([one.encode() if isinstance(one, str) else one for one in self.keys()], pa.binary())
                return as_arrow(columns.key, rows, pa.binary())
            case "value":
                return as_arrow(columns.value, rows, pa.binary())
            case "sequence_id":
                return (
                    _numbers(pa, pa.int64(), rows, array("q", self.message_sequence_ids()))
                    if self._lacks_sequences()
                    else _numbers(pa, pa.int64(), rows, columns.sequence_id)
                )
            case "batch_index":
                if all(self.batch_sizes):
                    return _numbers(pa, pa.int32(), rows, columns.index)
                return _numbers(pa, pa.int32(), rows, array("i", self.batch_indexes()))
            case "event_time":
                known = _numbers(pa, pa.int64(), rows, columns.event_time).cast(pa.bool_()).buffers()[1]
                return pa.Array.from_buffers(pa.timestamp("ms", "UTC"), rows, [known, pa.py_buffer(columns.event_time)])
            case "properties":
                return self._property_maps(pa)
            case "entry":
                return _numbers(pa, pa.int32(), rows, self.entries())
            case "publish_time":
                times = array("q", self.publish_times)
                return self._spread(_numbers(pa, pa.timestamp("ms", "UTC"), len(times), times))
            case "producer_name":
                names = [name.encode() for name in self.producer_names]
                return self._spread(as_arrow(texts_of(names), len(names), pa.string()))
            case "schema_version":
                versions = self.schema_versions
                return self._spread(as_arrow(texts_of(versions), len(versions), pa.binary()))
        raise KeyError(f"unknown column {name!r}: one of {', '.join(NAMES)}")

    def _spread(self, per_entry: Any) -> Any:
        return per_entry.take(self.arrow("entry"))

    def _lacks_sequences(self) -> bool:
        return NO_SEQUENCE in memoryview(self.columns.sequence_id).cast("B").cast("q")

    def _text_keys(self, pa: Any) -> Any:
        if self.columns.key_is_base64 is None:
            return as_arrow(self.columns.key, len(self), pa.string())
        return pa.array([key if isinstance(key, str) else _text(key) for key in self.keys()], pa.string())

    def _property_maps(self, pa: Any) -> Any:
        kind, pairs = pa.map_(pa.string(), pa.string()), self.columns.properties
        if pairs is None:
            nothing = Texts(bytes(4), b"")
            pairs = Properties(bytes(4 * (len(self) + 1)), nothing, nothing)
        starts, names, texts = pairs.offsets, pairs.names, pairs.values
        count = memoryview(starts).cast("B").cast("i")[len(self)]
        both = pa.StructArray.from_arrays(
            [as_arrow(names, count, pa.string()), as_arrow(texts, count, pa.string())],
            fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
        )
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(starts)], children=[both])


def as_arrow(texts: Texts, rows: int, kind: Any) -> Any:
    """A column of bytes or text (`kind`) on the existing buffers."""
    import pyarrow as pa

    bits = None if texts.validity is None else pa.py_buffer(texts.validity)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)])


def _numbers(pa: Any, kind: Any, rows: int, data: Any) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def longs(data: Bytes) -> list[int]:
    found: list[int] = memoryview(data).cast("B").cast("q").tolist()
    return found


def pieces(texts: Texts) -> list[bytes | None]:
    starts, whole = memoryview(texts.offsets).cast("B").cast("i").tolist(), bytes(texts.data)
    bits = texts.validity
    if bits is None:
        return [whole[a:b] for a, b in pairwise(starts)]
    return [whole[a:b] if bits[row >> 3] >> (row & 7) & 1 else None for row, (a, b) in enumerate(pairwise(starts))]


def keys_of(columns: Columns) -> list[str | bytes | None]:
    """Text, or bytes if the sender declared so."""
    bits = columns.key_is_base64
    if bits is None and columns.key.validity is None:
        whole = str(columns.key.data, "utf-8")
        if len(whole) == len(columns.key.data):  # ASCII, so the offsets fit the text too
            starts = memoryview(columns.key.offsets).cast("B").cast("i").tolist()
            return [whole[a:b] for a, b in pairwise(starts)]
    texts = pieces(columns.key)
    if bits is None:
        return [None if one is None else one.decode() for one in texts]
    return [
        None if one is None else key_of(one.decode(), bool(bits[row >> 3] >> (row & 7) & 1))
        for row, one in enumerate(texts)
    ]


def properties_of(columns: Columns) -> list[dict[str, str]]:
    pairs = columns.properties
    if pairs is None:
        return [{} for _ in range(columns.rows)]
    names = [one.decode() for one in pieces(pairs.names) if one is not None]
    texts = [one.decode() for one in pieces(pairs.values) if one is not None]
    starts = memoryview(pairs.offsets).cast("B").cast("i").tolist()
    return [dict(zip(names[a:b], texts[a:b], strict=True)) for a, b in pairwise(starts)]


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
