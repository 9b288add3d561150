"""Columns to entries: handles metadata, compression and checksum per entry; the inner loops handle the messages.

Raises only BadColumn.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any

import crc32c

from anabranch.model.partition_hash import PartitionHash
from anabranch.model.routing import RingHash, Routing, RoutingKind
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import core
from anabranch.protocol.codec.column import BadColumn, Column, numbers, pairs
from anabranch.protocol.codec.partitions import has_bytes, partition_numbers
from anabranch.protocol.entry import CHECKSUM_MAGIC

Compressor = Callable[[bytes | bytearray], tuple[int, bytes]]
"""Body → wire number of its compression, and the compressed body."""

Encryptor = Callable[[pb.MessageMetadata, bytes | bytearray], bytes]
"""Metadata of an entry, which it changes, and body → encrypted body."""

Extra = Callable[[int, Sequence[int]], bytes]
"""Segment and rows of an entry → additional fields of its metadata."""

_HEAD = Struct(">HII").pack  # magic, checksum, size of the metadata
_PACK_U32 = Struct(">I").pack
_U32 = Struct(">I").unpack_from
_KINDS = {RingHash.LOW16: 1, RingHash.HIGH16: 2}


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One entry, ready for SEND: its bytes are `head` followed by `body`."""

    head: bytes
    body: bytes | bytearray
    first: int  # sequence id
    highest: int
    rows: Sequence[int]  # rows of the columns, in order

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)

    @property
    def data(self) -> bytes:
        return self.head + self.body


def key_hashes(keys: Column) -> memoryview:
    """murmur3-32 of every key, unsigned; 0 for rows without one."""
    loops = core.loops
    return memoryview(loops.key_hashes(loops.given(keys, "keys"))).cast("I")


def route(
    keys: Column, routing: Routing, borders: Sequence[int], *, first: int = 0, sequence_ids: Column | None = None
) -> memoryview:
    """The segment number of each row.

    For `range` routing `borders` has the first ring position of each segment, ascending from 0; for `mod-n` only its
    length counts. Rows without a key are routed by sequence id: `first`, `first` + 1 …, or `sequence_ids`.
    """
    if not borders:
        raise BadColumn("no segment to route to")
    loops = core.loops
    given = loops.given(keys, "keys")
    rows = _length(given)
    wanted = numbers(sequence_ids, rows, "sequence_ids")
    kind = 0
    if routing.kind is RoutingKind.RANGE:
        kind = _KINDS[routing.ring_hash]
    elif routing.partition_hash is not PartitionHash.MURMUR3 or has_bytes(keys):
        return partition_numbers(keys, routing.partition_hash, len(borders), first, wanted)
    return memoryview(loops.route(given, kind, array("i", borders), first, wanted)).cast("i")


def write(
    values: Column,
    keys: Column | None = None,
    *,
    producer_name: str,
    publish_time: int,
    first: int = 0,
    sequence_ids: Column | None = None,
    event_times: Column | None = None,
    properties: Column | None = None,
    segments: Sequence[int] | None = None,
    segment_count: int = 1,
    messages_max: int = 1000,
    bytes_max: int = 128 * 1024,
    compressed: Compressor | None = None,
    extra: bytes | Extra = b"",
    encrypted: Encryptor | None = None,
) -> list[list[Packed]]:
    """The entries of each segment, rows in order; without `segments` (see `route`) all rows belong to segment 0.

    A row with a negative segment is omitted. A missing value is a null value (a tombstone); keys may be text or bytes.
    Sequence ids are `first`, `first` + 1 … in row order, or `sequence_ids`. An entry has at most `messages_max`
    messages and `bytes_max` bytes before compression, unless a single message has more. A message alone in its entry
    has no batch layout.

    `extra` is appended to each entry's metadata: encoded fields like a schema version. It may depend on the entry, and
    is then called in the order of a segment's entries. `compressed` compresses bodies, then `encrypted` encrypts them.
    """
    loops = core.loops
    given = loops.given(values, "values")
    rows = _length(given)
    columns = (
        given,
        None if keys is None else loops.given(keys, "keys"),
        None,
        numbers(event_times, rows, "event_times"),
        pairs(properties, rows, loops.given),
        first,
        numbers(sequence_ids, rows, "sequence_ids"),
    )
    order, starts = None, [0, rows]
    if segments is not None:
        order, starts = loops.arranged(_segments(segments, rows), segment_count)
    numbered = range(rows) if order is None else memoryview(order).cast("B").cast("i")
    packed: list[list[Packed]] = []
    for segment, (begin, end) in enumerate(pairwise(starts)):
        entries = []
        for body, start, count, lowest, highest in loops.pack(*columns, order, begin, end, messages_max, bytes_max):
            of = pb.MessageMetadata(producer_name=producer_name, sequence_id=lowest, publish_time=publish_time)
            plain: bytes | bytearray = _plain(of, body) if count == 1 else _batch(of, body, count, highest)
            of.uncompressed_size = len(plain)
            if compressed is not None:
                kind, plain = compressed(plain)
                of.compression = kind  # type: ignore[assignment]  # a number of the wire
            if encrypted is not None:
                plain = encrypted(of, plain)
            mine = numbered[start : start + count]
            more = extra if isinstance(extra, bytes) else extra(segment, mine)
            entries.append(Packed(_head(of, more, plain), plain, lowest, highest, mine))
        packed.append(entries)
    return packed


def _length(given: Any) -> int:
    return int(given[5]) if isinstance(given, tuple) else len(given)


def _segments(segments: Sequence[int], rows: int) -> memoryview:
    found = segments if isinstance(segments, memoryview) else memoryview(array("i", segments))
    if found.format != "i" or len(found) != rows:
        raise BadColumn(f"segments has {len(found)} rows of {found.format!r}, expected {rows} of 'i'")
    return found


def _batch(of: pb.MessageMetadata, body: bytearray, count: int, highest: int) -> bytearray:
    of.num_messages_in_batch = count
    of.highest_sequence_id = highest
    first = pb.SingleMessageMetadata.FromString(bytes(body[4 : 4 + _U32(body)[0]]))
    _set_key(of, first)  # as in stock clients, the entry has the key of its first message
    return body


def _plain(of: pb.MessageMetadata, body: bytearray) -> bytearray:
    """A single message: its fields become fields of the entry."""
    after = 4 + _U32(body)[0]
    single = pb.SingleMessageMetadata.FromString(bytes(body[4:after]))
    of.properties.extend(single.properties)
    _set_key(of, single)
    if single.event_time:
        of.event_time = single.event_time
    if single.null_value:
        of.null_value = True
    del body[:after]
    return body


def _set_key(of: pb.MessageMetadata, single: pb.SingleMessageMetadata) -> None:
    if single.HasField("partition_key"):
        of.partition_key = single.partition_key
        if single.partition_key_b64_encoded:
            of.partition_key_b64_encoded = True


def _head(of: pb.MessageMetadata, extra: bytes, body: bytes | bytearray) -> bytes:
    described = of.SerializeToString() + extra
    covered = _PACK_U32(len(described)) + described
    return _HEAD(CHECKSUM_MAGIC, crc32c.crc32c(body, crc32c.crc32c(covered)), len(described)) + described
