"""The codec in plain Python: the reference, and what runs where no compiled one is there. Knows the batch layout
(`anabranch.protocol.entry` draws it); raises BadEntry for what does not keep to it, and nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as struct_error

from google.protobuf.message import DecodeError

from anabranch.codec.columns import NO_SEQUENCE, Body, Columns, Properties, Texts
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import BadEntry

_U32 = Struct(">I").unpack_from
_PACK_U32 = Struct(">I").pack
_SINGLE: Callable[[Bytes], pb.SingleMessageMetadata] = pb.SingleMessageMetadata.FromString  # type: ignore[assignment]  # takes views


class _TextsMade:
    """A column of byte strings that grows."""

    __slots__ = ("_bits", "_end", "_has_nulls", "_offsets", "_parts")

    def __init__(self) -> None:
        self._offsets = array("i", [0])
        self._parts: list[Bytes] = []
        self._bits: list[bool] = []
        self._has_nulls = False
        self._end = 0

    def add(self, value: Bytes | None) -> None:
        self._bits.append(value is not None)
        if value is None:
            self._has_nulls = True
        else:
            self._parts.append(value)
            self._end += len(value)
        self._offsets.append(self._end)

    def made(self) -> Texts:
        return Texts(self._offsets.tobytes(), b"".join(self._parts), bitmap(self._bits) if self._has_nulls else None)


def decode(bodies: Sequence[Body]) -> Columns:
    """The messages of these bodies as columns."""
    keys, values, names, contents = _TextsMade(), _TextsMade(), _TextsMade(), _TextsMade()
    index, times, sequences, pairs = array("i"), array("q"), array("q"), array("i", [0])
    base64: list[bool] = []
    rows_per_body: list[int] = []
    pair_count = 0
    for body, count in bodies:
        data = bytes(body)
        offset, before = 0, len(index)
        for number in range(count):
            try:
                start = offset + 4 + int(_U32(data, offset)[0])
                single = _SINGLE(data[offset + 4 : start])
            except struct_error as cause:
                raise BadEntry("batch ends inside a message's size") from cause
            except DecodeError as cause:
                raise BadEntry("message metadata inside the batch does not parse") from cause
            offset = start + single.payload_size
            if not single.IsInitialized() or not start <= offset <= len(data):
                raise BadEntry("message inside the batch is incomplete")
            if single.compacted_out:
                continue
            index.append(number)
            has_key = single.HasField("partition_key") and not single.null_partition_key
            keys.add(_text(single.partition_key) if has_key else None)
            base64.append(has_key and single.partition_key_b64_encoded)
            values.add(None if single.null_value else data[start:offset])
            times.append(_signed(single.event_time))
            sequences.append(_signed(single.sequence_id) if single.HasField("sequence_id") else NO_SEQUENCE)
            for pair in single.properties:
                names.add(_text(pair.key))
                contents.add(_text(pair.value))
                pair_count += 1
            pairs.append(pair_count)
        if offset != len(data):
            raise BadEntry(f"batch has {len(data) - offset} bytes after its last message")
        rows_per_body.append(len(index) - before)
    return Columns(
        len(index),
        rows_per_body,
        index.tobytes(),
        keys.made(),
        bitmap(base64) if any(base64) else None,
        values.made(),
        times.tobytes(),
        sequences.tobytes(),
        Properties(pairs.tobytes(), names.made(), contents.made()) if pair_count else None,
    )


def encode(columns: Columns, rows: Sequence[int]) -> bytes:
    """These rows as a body of the batch layout, in the order given."""
    offsets, key_offsets = _ints(columns.value.offsets), _ints(columns.key.offsets)
    data, key_data = memoryview(columns.value.data), memoryview(columns.key.data)
    times, sequences = _longs(columns.event_time), _longs(columns.sequence_id)
    value_bits, key_bits, base64 = columns.value.validity, columns.key.validity, columns.key_is_base64
    properties = None if columns.properties is None else _pairs_of(columns.properties)
    parts: list[Bytes] = []
    for row in rows:
        head = bytearray()
        if properties is not None:
            for pair in properties(row):
                head += b"\x0a" + _varint(len(pair)) + pair
        if key_bits is None or _bit(key_bits, row):
            key = key_data[key_offsets[row] : key_offsets[row + 1]]
            head += b"\x12" + _varint(len(key)) + key
        value = data[offsets[row] : offsets[row + 1]] if value_bits is None or _bit(value_bits, row) else None
        head += b"\x18" + _varint(0 if value is None else len(value))
        if times[row]:
            head += b"\x28" + _varint(times[row])
        if base64 is not None and _bit(base64, row):
            head += b"\x30\x01"
        if sequences[row] != NO_SEQUENCE:
            head += b"\x40" + _varint(sequences[row])
        if value is None:
            head += b"\x48\x01"
        parts += (_PACK_U32(len(head)), head)
        if value:
            parts.append(value)
    return b"".join(parts)


def bitmap(bits: Sequence[bool]) -> bytes:
    """One bit per row, least significant first."""
    made = bytearray((len(bits) + 7) // 8)
    for at, bit in enumerate(bits):
        if bit:
            made[at >> 3] |= 1 << (at & 7)
    return bytes(made)


def _pairs_of(properties: Properties) -> Callable[[int], list[bytes]]:
    starts = _ints(properties.offsets)
    name_at, value_at = _ints(properties.names.offsets), _ints(properties.values.offsets)
    names, values = memoryview(properties.names.data), memoryview(properties.values.data)

    def encoded(row: int) -> list[bytes]:
        found = []
        for i in range(starts[row], starts[row + 1]):
            name, value = names[name_at[i] : name_at[i + 1]], values[value_at[i] : value_at[i + 1]]
            found.append(b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(value)) + value)
        return found

    return encoded


def _varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 0x80:
        return bytes((value,))
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _text(value: str | bytes) -> bytes:
    """upb hands out text that is not UTF-8 as bytes."""
    return value if isinstance(value, bytes) else value.encode()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _bit(bits: Bytes, at: int) -> bool:
    return bool(bits[at >> 3] >> (at & 7) & 1)


def _ints(data: Bytes) -> memoryview:
    return memoryview(data).cast("B").cast("i")


def _longs(data: Bytes) -> memoryview:
    return memoryview(data).cast("B").cast("q")
