"""The codec in Python: the reference, used if no compiled one is installed. Raises BadEntry for invalid bodies.

`anabranch.protocol.entry` shows the batch layout.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from struct import Struct

from google.protobuf.message import DecodeError

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec.columns import NO_SEQUENCE, Body, Columns, Properties, Texts
from anabranch.protocol.codec.rows import Listing, key_of
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import BadEntry, RunTooLarge

_U32 = Struct(">I").unpack_from
_HEAD = Struct(">IBB").unpack_from
_PACK_U32 = Struct(">I").pack

ARROW_BYTES_MAX = (1 << 31) - 1
RECORD_BYTES_MIN = 6  # a size, and in the metadata a payload size


class PythonRows:
    """Collects the rows of one or more bodies."""

    __slots__ = ("_base64", "_index", "_keys", "_names", "_pairs", "_sequences", "_texts", "_times", "_values")

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._names: list[bytes | None] = []
        self._texts: list[bytes | None] = []
        self._index, self._times, self._sequences = array("i"), array("q"), array("q")
        self._pairs = array("i", [0])
        self._base64: list[int] = []

    @property
    def count(self) -> int:
        return len(self._index)

    def values(self) -> list[bytes | None]:
        return self._values

    def keys(self) -> list[str | bytes | None]:
        keys: list[str | bytes | None] = [None if one is None else one.decode() for one in self._keys]
        for row in self._base64:
            text = keys[row]
            assert isinstance(text, str)
            keys[row] = key_of(text, True)
        return keys

    def listing(self) -> Listing:
        properties = None
        if self._names:
            names, texts = ([(one or b"").decode() for one in column] for column in (self._names, self._texts))
            properties = [dict(zip(names[a:b], texts[a:b], strict=True)) for a, b in pairwise(self._pairs)]
        times = self._times.tolist() if any(self._times) else None
        return Listing(self._index, self._values, self.keys(), self._sequences.tolist(), times, properties)

    def columns(self, rows_per_body: Sequence[int] | None = None) -> Columns:
        rows = len(self._index)
        return Columns(
            rows,
            [rows] if rows_per_body is None else rows_per_body,
            self._index.tobytes(),
            texts_of(self._keys),
            _bits(rows, self._base64) if self._base64 else None,
            texts_of(self._values),
            self._times.tobytes(),
            self._sequences.tobytes(),
            Properties(self._pairs.tobytes(), texts_of(self._names), texts_of(self._texts)) if self._names else None,
        )

    def add_usual(self, numbers: range, keys: list[bytes | None], values: list[bytes | None], ids: list[int]) -> None:
        self._index.extend(numbers)
        self._keys += keys
        self._values += values
        self._sequences.extend(ids)
        self._times.frombytes(bytes(8 * len(numbers)))
        self._pairs.extend([len(self._names)] * len(numbers))

    def add(self, number: int, single: pb.SingleMessageMetadata, value: bytes) -> None:
        if single.HasField("partition_key") and not single.null_partition_key:
            if single.partition_key_b64_encoded:
                self._base64.append(len(self._index))
            self._keys.append(_text(single.partition_key))
        else:
            self._keys.append(None)
        self._values.append(None if single.null_value else value)
        self._index.append(number)
        self._times.append(_signed(single.event_time))
        self._sequences.append(_signed(single.sequence_id) if single.HasField("sequence_id") else NO_SEQUENCE)
        for pair in single.properties:
            self._names.append(_text(pair.key))
            self._texts.append(_text(pair.value))
        self._pairs.append(len(self._names))


def opened(data: Bytes, count: int) -> PythonRows:
    """The messages of one body. Raises BadEntry."""
    rows = PythonRows()
    _open_into(rows, data, count)
    return rows


def decode(bodies: Sequence[Body]) -> Columns:
    """The messages of these bodies as columns. Raises BadEntry, or RunTooLarge if Arrow's offsets would overflow."""
    if sum(len(body) for body, _ in bodies) > ARROW_BYTES_MAX:
        raise RunTooLarge("more than 2 GiB in one run: decode fewer bodies at a time")
    rows = PythonRows()
    rows_per_body: list[int] = []
    for body, count in bodies:
        before = rows.count
        _open_into(rows, body, count)
        rows_per_body.append(rows.count - before)
    return rows.columns(rows_per_body)


def _open_into(rows: PythonRows, body: Bytes, count: int) -> None:
    if count * RECORD_BYTES_MIN > len(body):
        raise BadEntry(f"batch of {count} messages has only {len(body)} bytes")
    data, offset, number = bytes(body), 0, 0
    single = pb.SingleMessageMetadata()  # reused for each message; its memory is freed with the batch
    while number < count:
        offset, number = _decode_usual(data, offset, number, count, rows)
        if number < count:
            offset = _decode_any(data, offset, number, single, rows)
            number += 1
    if offset != len(data):
        raise BadEntry(f"batch has {len(data) - offset} bytes after its last message")


def _decode_usual(data: bytes, offset: int, first: int, count: int, rows: PythonRows) -> tuple[int, int]:
    """Decode records of the usual form by hand, at a fraction of the cost: an ASCII key or none, the size, a sequence
    id, in this order.

    Returns offset and number of the first record of another form.
    """
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    ids: list[int] = []
    whole = len(data)
    try:
        for _ in range(first, count):
            length, tag, size = _HEAD(data, offset)
            start = offset + 4 + length
            at = offset + 6
            key = None
            if tag == 0x12 and size < 128:
                key = data[at : at + size]
                if not key.isascii():
                    break
                at += size + 2
                tag, size = data[at - 2], data[at - 1]
            if tag != 0x18:
                break
            if size > 127:
                more = data[at]
                if more > 127:
                    break
                size += (more << 7) - 128
                at += 1
            end = start + size
            if data[at] != 0x40 or end > whole:
                break
            digits = start - at - 1
            if digits == 3:  # most sequence ids, in one step
                bits = data[at + 1] | data[at + 2] << 8 | data[at + 3] << 16
                if bits & 0x808080 != 0x8080:
                    break
                ids.append(bits & 0x7F | bits >> 1 & 0x3F80 | bits >> 2 & 0x1FC000)
            elif (found := _varint_of(data, at + 1, digits)) >= 0:
                ids.append(found)
            else:
                break
            keys.append(key)
            values.append(data[start:end])
            offset = end
    except (IndexError, struct.error):
        pass  # it is truncated: the general decoder reports how
    number = first + len(ids)
    rows.add_usual(range(first, number), keys, values, ids)
    return offset, number


def _varint_of(data: bytes, at: int, digits: int) -> int:
    """A number encoded in exactly this many bytes and below 1 << 63; otherwise -1."""
    if not 1 <= digits <= 8:
        return -1
    found = 0
    for place in range(digits):
        one = data[at + place]
        if (one > 127) == (place == digits - 1):
            return -1
        found |= (one & 127) << 7 * place
    return found


def _decode_any(data: bytes, offset: int, number: int, single: pb.SingleMessageMetadata, rows: PythonRows) -> int:
    """Decode one record of any form; returns the offset of the next one."""
    if offset + 4 > len(data):
        raise BadEntry("batch ends inside the size of a message")
    start = offset + 4 + _U32(data, offset)[0]
    if start > len(data):
        raise BadEntry("batch ends inside the metadata of a message")
    try:
        single.ParseFromString(data[offset + 4 : start])
    except DecodeError as cause:
        raise BadEntry("message metadata inside the batch does not parse") from cause
    end: int = start + single.payload_size
    if not single.IsInitialized() or not start <= end <= len(data):
        raise BadEntry("message inside the batch is incomplete")
    if not single.compacted_out:
        rows.add(number, single, data[start:end])
    return end


def encode(columns: Columns, rows: Sequence[int]) -> bytes:
    """These rows as a body of the batch layout, in the given order."""
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
    return _bits(len(bits), [at for at, bit in enumerate(bits) if bit])


def _bits(rows: int, ones: Sequence[int]) -> bytes:
    made = bytearray((rows + 7) // 8)
    for at in ones:
        made[at >> 3] |= 1 << (at & 7)
    return bytes(made)


def texts_of(pieces: Sequence[bytes | None]) -> Texts:
    """A column of byte strings; missing ones are None."""
    offsets = array("i", [0])
    if None not in pieces:
        there: list[bytes] = pieces  # type: ignore[assignment]  # it was looked at
        offsets.extend(accumulate(map(len, there)))
        return Texts(offsets.tobytes(), b"".join(there))
    offsets.extend(accumulate(0 if one is None else len(one) for one in pieces))
    bits = bitmap([one is not None for one in pieces])
    return Texts(offsets.tobytes(), b"".join([one for one in pieces if one is not None]), bits)


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
    if isinstance(value, bytes):  # upb returns text that is not UTF-8 as bytes
        raise BadEntry("message metadata inside the batch has text that is not UTF-8")
    return value.encode()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _bit(bits: Bytes, at: int) -> bool:
    return bool(bits[at >> 3] >> (at & 7) & 1)


def _ints(data: Bytes) -> memoryview:
    return memoryview(data).cast("B").cast("i")


def _longs(data: Bytes) -> memoryview:
    return memoryview(data).cast("B").cast("q")
