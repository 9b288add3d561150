"""The codec in plain Python: the reference, and what runs where no compiled one is there. Knows the batch layout
(`anabranch.protocol.entry` draws it); raises BadEntry for what does not keep to it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct

from google.protobuf.message import DecodeError

from anabranch.codec.columns import NO_SEQUENCE, Body, Columns, Properties, Texts
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import BadEntry, RunTooLarge

_U32 = Struct(">I").unpack_from
_PACK_U32 = Struct(">I").pack

ARROW_BYTES_MAX = (1 << 31) - 1
RECORD_BYTES_MIN = 6  # a size, and in the metadata a payload size


class _Rows:
    """The rows of a run as they come."""

    __slots__ = ("base64", "index", "keys", "names", "pairs", "sequences", "texts", "times", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.names: list[bytes | None] = []
        self.texts: list[bytes | None] = []
        self.index, self.times, self.sequences = array("i"), array("q"), array("q")
        self.pairs = array("i", [0])
        self.base64: list[int] = []

    def columns(self, rows_per_body: list[int]) -> Columns:
        rows = len(self.index)
        return Columns(
            rows,
            rows_per_body,
            self.index.tobytes(),
            _texts(self.keys),
            _bits(rows, self.base64) if self.base64 else None,
            _texts(self.values),
            self.times.tobytes(),
            self.sequences.tobytes(),
            Properties(self.pairs.tobytes(), _texts(self.names), _texts(self.texts)) if self.names else None,
        )


def decode(bodies: Sequence[Body]) -> Columns:
    """The messages of these bodies as columns. Raises BadEntry, or RunTooLarge where Arrow's offsets would not do."""
    if sum(len(body) for body, _ in bodies) > ARROW_BYTES_MAX:
        raise RunTooLarge("more than 2 GiB in one run: decode fewer bodies at a time")
    rows = _Rows()
    rows_per_body: list[int] = []
    for body, count in bodies:
        before = len(rows.index)
        if count * RECORD_BYTES_MIN > len(body):
            raise BadEntry(f"batch of {count} messages has only {len(body)} bytes")
        _decode_body(bytes(body), count, rows)
        rows_per_body.append(len(rows.index) - before)
    return rows.columns(rows_per_body)


def _decode_body(data: bytes, count: int, rows: _Rows) -> None:
    """The usual record (a key in ASCII, the size, a sequence id, in this order) is read by hand, for a quarter of the
    price; any other by upb."""
    add_key, add_value, add_index = rows.keys.append, rows.values.append, rows.index.append
    add_time, add_sequence, add_pair = rows.times.append, rows.sequences.append, rows.pairs.append
    single = pb.SingleMessageMetadata()  # used again for each message; its memory goes with the batch
    whole, offset = len(data), 0
    for number in range(count):
        at = offset + 4
        if at > whole:
            raise BadEntry("batch ends inside a message's size")
        start = at + _U32(data, offset)[0]
        if start > whole:
            raise BadEntry("batch ends inside a message's metadata")
        try:
            key = None
            if data[at] == 0x12:
                length = data[at + 1]
                at += 2
                key = data[at : at + length]
                at += length
                is_usual = length < 128 and key.isascii()
            else:
                is_usual = True
            size = data[at + 1]
            is_usual = is_usual and data[at] == 0x18
            at += 2
            if size > 127:
                more = data[at]
                at += 1
                is_usual = is_usual and more < 128
                size = size & 127 | more << 7
            is_usual = is_usual and data[at] == 0x40
            sequence = data[at + 1]
            at += 2
            if sequence > 127:
                sequence &= 127
                shift = 7
                while (more := data[at]) > 127 and shift < 56:
                    sequence |= (more & 127) << shift
                    shift += 7
                    at += 1
                sequence |= more << shift
                at += 1
                is_usual = is_usual and more < 128
        except IndexError:
            is_usual = False
        if not is_usual or at != start or start + size > whole:
            offset = _decode_unusual(data, offset, start, number, single, rows)
            continue
        offset = start + size
        add_key(key)
        add_value(data[start:offset])
        add_index(number)
        add_time(0)
        add_sequence(sequence)
        add_pair(len(rows.names))
    if offset != whole:
        raise BadEntry(f"batch has {whole - offset} bytes after its last message")


def _decode_unusual(
    data: bytes, offset: int, start: int, number: int, single: pb.SingleMessageMetadata, rows: _Rows
) -> int:
    """One record of any form; where the next one begins."""
    try:
        single.ParseFromString(data[offset + 4 : start])
    except DecodeError as cause:
        raise BadEntry("message metadata inside the batch does not parse") from cause
    end = start + single.payload_size
    if not single.IsInitialized() or not start <= end <= len(data):
        raise BadEntry("message inside the batch is incomplete")
    if single.compacted_out:
        return end
    if single.HasField("partition_key") and not single.null_partition_key:
        if single.partition_key_b64_encoded:
            rows.base64.append(len(rows.index))
        rows.keys.append(_text(single.partition_key))
    else:
        rows.keys.append(None)
    rows.values.append(None if single.null_value else data[start:end])
    rows.index.append(number)
    rows.times.append(_signed(single.event_time))
    rows.sequences.append(_signed(single.sequence_id) if single.HasField("sequence_id") else NO_SEQUENCE)
    for pair in single.properties:
        rows.names.append(_text(pair.key))
        rows.texts.append(_text(pair.value))
    rows.pairs.append(len(rows.names))
    return end


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
    return _bits(len(bits), [at for at, bit in enumerate(bits) if bit])


def _bits(rows: int, ones: Sequence[int]) -> bytes:
    made = bytearray((rows + 7) // 8)
    for at in ones:
        made[at >> 3] |= 1 << (at & 7)
    return bytes(made)


def _texts(pieces: list[bytes | None]) -> Texts:
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
    if isinstance(value, bytes):  # so upb hands out text that is not UTF-8
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
