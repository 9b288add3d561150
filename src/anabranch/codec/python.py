"""The codec in plain Python: the reference, and what runs where no compiled one is there. Knows the batch layout
(`anabranch.protocol.entry` draws it); raises BadEntry for what does not keep to it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct
from struct import error as struct_error

from google.protobuf.message import DecodeError

from anabranch.codec.columns import NO_SEQUENCE, Body, Columns, Properties, Texts
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes
from anabranch.protocol.errors import BadEntry, RunTooLarge

_U32 = Struct(">I").unpack_from
_PACK_U32 = Struct(">I").pack

ARROW_BYTES_MAX = (1 << 31) - 1
RECORD_BYTES_MIN = 6  # a size, and in the metadata a payload size


def decode(bodies: Sequence[Body]) -> Columns:
    """The messages of these bodies as columns. Raises BadEntry, or RunTooLarge where Arrow's offsets would not do."""
    if sum(len(body) for body, _ in bodies) > ARROW_BYTES_MAX:
        raise RunTooLarge("more than 2 GiB in one run: decode fewer bodies at a time")
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    names: list[bytes | None] = []
    contents: list[bytes | None] = []
    index, times, sequences, pairs = array("i"), array("q"), array("q"), array("i", [0])
    base64: list[int] = []
    rows_per_body: list[int] = []
    for body, count in bodies:
        data = bytes(body)
        if count * RECORD_BYTES_MIN > len(data):
            raise BadEntry(f"batch of {count} messages has only {len(data)} bytes")
        single = pb.SingleMessageMetadata()  # used again for each message; its memory goes with the batch
        parse = single.ParseFromString
        offset, before = 0, len(index)
        for number in range(count):
            try:
                start = offset + 4 + int(_U32(data, offset)[0])
                parse(data[offset + 4 : start])
            except struct_error as cause:
                raise BadEntry("batch ends inside a message's size") from cause
            except DecodeError as cause:
                raise BadEntry("message metadata inside the batch does not parse") from cause
            offset = start + single.payload_size
            if not single.IsInitialized() or not start <= offset <= len(data):
                raise BadEntry("message inside the batch is incomplete")
            if single.compacted_out:
                continue
            if single.HasField("partition_key") and not single.null_partition_key:
                if single.partition_key_b64_encoded:
                    base64.append(len(index))
                keys.append(_text(single.partition_key))
            else:
                keys.append(None)
            index.append(number)
            values.append(None if single.null_value else data[start:offset])
            times.append(_signed(single.event_time))
            sequences.append(_signed(single.sequence_id) if single.HasField("sequence_id") else NO_SEQUENCE)
            for pair in single.properties:
                names.append(_text(pair.key))
                contents.append(_text(pair.value))
            pairs.append(len(names))
        if offset != len(data):
            raise BadEntry(f"batch has {len(data) - offset} bytes after its last message")
        rows_per_body.append(len(index) - before)
    rows = len(index)
    return Columns(
        rows,
        rows_per_body,
        index.tobytes(),
        _texts(keys),
        _bits(rows, base64) if base64 else None,
        _texts(values),
        times.tobytes(),
        sequences.tobytes(),
        Properties(pairs.tobytes(), _texts(names), _texts(contents)) if names else None,
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
