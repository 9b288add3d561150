"""Rows to bodies of batches, and rows to segments, in Python: the reference of `_native.c`. Raises BadColumn."""

from __future__ import annotations

import base64
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from struct import Struct
from typing import Any

import mmh3

from anabranch.model.keyhash import partition_of
from anabranch.model.routing import keyless_position
from anabranch.protocol.codec.column import BadColumn, Numbers, Pairs
from anabranch.protocol.codec.columns import NO_SEQUENCE
from anabranch.protocol.commands import U64_MASK, varint

PAYLOAD_BYTES_MAX = (1 << 31) - 1  # limit of the wire: an int32

Batch = tuple[bytearray, int, int, int, int]
"""Body, index of its first row in the order, number of rows, first and last sequence id."""

_PACK_U32 = Struct(">I").pack
MANY, FEW = 1 << 14, 1 << 11  # numbers that are kept encoded


def pack(
    values: list[bytes | None],
    keys: list[str | bytes | None] | None,
    key_is_base64: None,
    event_times: Numbers | None,
    pairs: Pairs | None,
    first: int,
    sequence_ids: Numbers | None,
    order: Numbers | None,
    begin: int,
    end: int,
    messages_max: int,
    bytes_max: int,
) -> list[Batch]:
    """Rows `begin` … `end`-1 of `order` (None: of the columns) as bodies within the limits; a single message may exceed
    them.

    `key_is_base64` is for columns with keys as on the wire, which only `encode` has.
    """
    rows = len(values)
    if keys is not None and len(keys) != rows:
        raise BadColumn(f"keys has {len(keys)} rows, expected {rows}")
    batches: list[Batch] = []
    records: list[bytes] = []
    record: tuple[bytes, ...]
    start, size, lowest, sequence = begin, 0, 0, 0
    is_plain = pairs is None and event_times is None
    short, low, heads, sizes, lengths = _tables()
    for place in range(begin, end):
        row = place if order is None else order[place]
        value, key = values[row], None if keys is None else keys[row]
        following = first + row if sequence_ids is None else sequence_ids[row]
        if is_plain and type(value) is bytes and (key is None or type(key) is str) and 0 <= following < 1 << 28:
            # The usual row, built of precomputed pieces at a third of the cost.
            length = len(value)
            usual = sizes[length] if length < FEW else b"\x18" + varint(length) + b"\x40"
            usual += short[following] if following < MANY else low[following & MANY - 1] + short[following >> 14]
            if key is not None:
                text = key.encode() if key.isascii() else _encoded(key, row)
                usual = (heads[len(text)] if len(text) < FEW else b"\x12" + varint(len(text))) + text + usual
            size_bytes = len(usual)
            record = (lengths[size_bytes] if size_bytes < FEW else _PACK_U32(size_bytes), usual, value)
            length += 4 + size_bytes
        else:
            single, data = _single(value, key, event_times, pairs, following, row)
            record = (_PACK_U32(len(single)), single, data)
            length = 4 + len(single) + len(data)
        if place > start and (place - start >= messages_max or size + length > bytes_max):
            batches.append((bytearray().join(records), start, place - start, lowest, sequence))
            records, start, size = [], place, 0
        if place == start:
            lowest = following
        sequence = following
        records += record
        size += length
    if end > begin:
        batches.append((bytearray().join(records), start, end - start, lowest, sequence))
    return batches


@cache
def _tables() -> tuple[list[bytes], ...]:
    """Precomputed varints, built on first use and therefore never with the compiled codec.

    Numbers below MANY as varints, and the same with the continuation bit. Numbers below FEW as the size of a key with
    its tag, as the size of a value with the tag of the following sequence id, and as the size of a record.
    """
    short = [varint(number) for number in range(MANY)]
    return (
        short,
        [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(MANY)],
        [b"\x12" + one for one in short[:FEW]],
        [b"\x18" + one + b"\x40" for one in short[:FEW]],
        [_PACK_U32(number) for number in range(FEW)],
    )


def _single(
    value: Any, key: Any, event_times: Numbers | None, pairs: Pairs | None, sequence: int, row: int
) -> tuple[bytes, bytes]:
    """SingleMessageMetadata of any row, and its value."""
    if value is not None and not isinstance(value, bytes):
        raise BadColumn(f"value of row {row} is {type(value).__name__}, not bytes")
    data = value or b""
    if len(data) > PAYLOAD_BYTES_MAX:
        raise BadColumn(f"value of row {row} has {len(data)} bytes")
    single = b"" if pairs is None else _properties(pairs, row)
    single += _key(key, row) + b"\x18" + varint(len(data))
    if event_times is not None and event_times[row]:
        single += b"\x28" + varint(event_times[row] & U64_MASK)
    if isinstance(key, bytes):
        single += b"\x30\x01"
    if sequence != NO_SEQUENCE:
        single += b"\x40" + varint(sequence & U64_MASK)
    if value is None:
        single += b"\x48\x01"
    return single, data


def arranged(segments: memoryview, count: int) -> tuple[array[int], list[int]]:
    """Row numbers ordered by segment, without rows of a negative segment; and the start of each of `count` segments,
    with the end appended.
    """
    of: list[list[int]] = [[] for _ in range(count)]
    for row, segment in enumerate(segments.tolist()):
        if segment >= count:
            raise BadColumn(f"segment {segment} of row {row} is not below {count}")
        if segment >= 0:
            of[segment].append(row)
    order, starts = array("i"), [0]
    for rows in of:
        order.extend(rows)
        starts.append(len(order))
    return order, starts


def key_hashes(keys: list[str | bytes | None]) -> bytes:
    """Hash of each key; 0 for a row without a key."""
    hash_of = mmh3.hash
    return array("I", [0 if raw is None else hash_of(raw, 0, False) for raw in _raw(keys)]).tobytes()


def route(
    keys: list[str | bytes | None], kind: int, borders: Sequence[int], first: int, sequence_ids: Numbers | None
) -> bytes:
    """`kind`: 0 for mod-n, 1 and 2 for the low and the high half of the hash."""
    found, count = array("i"), len(borders)
    for row, raw in enumerate(_raw(keys)):
        if raw is None:
            sequence = (first + row if sequence_ids is None else sequence_ids[row]) & U64_MASK
            found.append(bisect_right(borders, keyless_position(sequence)) - 1 if kind else sequence % count)
            continue
        number = mmh3.hash(raw, 0, False)
        if kind == 0:
            found.append(partition_of(number, count))
        else:
            found.append(bisect_right(borders, number & 0xFFFF if kind == 1 else number >> 16) - 1)
    return found.tobytes()


def _raw(keys: list[str | bytes | None]) -> Iterable[bytes | None]:
    return (key if key is None or isinstance(key, bytes) else _encoded(key, row) for row, key in enumerate(keys))


def _key(key: Any, row: int) -> bytes:
    if key is None:
        return b""
    return b"\x12" + _sized(base64.b64encode(key) if isinstance(key, bytes) else _encoded(key, row))


def _encoded(key: Any, row: int) -> bytes:
    if not isinstance(key, str):
        raise BadColumn(f"key of row {row} is {type(key).__name__}, not text or bytes")
    try:
        return key.encode()
    except UnicodeEncodeError as cause:
        raise BadColumn(f"key of row {row} cannot be encoded as UTF-8") from cause


def _properties(pairs: Pairs, row: int) -> bytes:
    starts, names, texts = pairs
    found = b""
    for index in range(starts[row], starts[row + 1]):
        try:
            pair = b"\x0a" + _sized(names[index].encode()) + b"\x12" + _sized(texts[index].encode())
        except UnicodeEncodeError as cause:
            raise BadColumn(f"properties of row {row} cannot be encoded as UTF-8") from cause
        found += b"\x0a" + _sized(pair)
    return found


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data
