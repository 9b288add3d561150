"""Messages on their way out, and the entries they travel in. Knows the bytes of an entry; no connections, no time.

An entry is written once and sent again as the same bytes: its sequence ids, its borders and its times never change.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_with_payload, varint
from anabranch.protocol.entry import seal_entry

RECORD_OVERHEAD_BYTES = 64  # what a record adds to its payload on the wire, about
_PACK_U32 = Struct(">I").pack


@dataclass(slots=True, eq=False)
class Record:
    """One message to send. `ticket` is whatever the owner wants back with the outcome."""

    sequence_id: int
    value: bytes
    key: str | bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int = 0
    publish_time_ms: int = 0
    deliver_at_ms: int = 0
    deadline: float = float("inf")
    ticket: Any = None

    size_bytes: int = field(init=False)  # on the wire, about

    def __post_init__(self) -> None:
        size = len(self.value) + RECORD_OVERHEAD_BYTES
        if self.key:
            size += len(self.key)
        if self.properties:
            size += sum(len(name) + len(value) + 8 for name, value in self.properties.items())
        self.size_bytes = size


@dataclass(slots=True, eq=False)
class Entry:
    """One sealed batch, or one message alone."""

    records: Sequence[Record]
    data: bytes

    @property
    def first(self) -> int:
        return self.records[0].sequence_id

    @property
    def highest(self) -> int:
        return self.records[-1].sequence_id

    @property
    def deadline(self) -> float:
        return self.records[0].deadline

    def frame(self, producer_id: int) -> bytes:
        send = pb.CommandSend(
            producer_id=producer_id,
            sequence_id=self.first,
            num_messages=len(self.records),
            highest_sequence_id=self.highest,
        )
        return frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=send), self.data)


def sealed(records: Sequence[Record], producer_name: str) -> Entry:
    """The entry with these messages, in this order; one message alone is not in batch layout."""
    first, last = records[0], records[-1]
    of = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=first.sequence_id,
        publish_time=first.publish_time_ms,
    )
    _set_key(of, first.key)
    if len(records) == 1:
        if first.properties:
            of.properties.extend(_pairs(first.properties))
        if first.event_time_ms:
            of.event_time = first.event_time_ms
        if first.deliver_at_ms:
            of.deliver_at_time = first.deliver_at_ms
        of.uncompressed_size = len(first.value)
        return Entry(records, seal_entry(of, first.value))
    parts: list[bytes] = []
    for record in records:
        single = _single(record)
        parts += (_PACK_U32(len(single)), single, record.value)
    body = b"".join(parts)
    of.num_messages_in_batch = len(records)
    of.highest_sequence_id = last.sequence_id
    of.uncompressed_size = len(body)
    return Entry(records, seal_entry(of, body))


def _single(record: Record) -> bytes:
    """SingleMessageMetadata. The usual message is written by hand: a third of the price; a test compares the bytes."""
    key = record.key
    if record.properties or record.event_time_ms or isinstance(key, bytes):
        single = pb.SingleMessageMetadata(payload_size=len(record.value), sequence_id=record.sequence_id)
        if record.properties:
            single.properties.extend(_pairs(record.properties))
        if record.event_time_ms:
            single.event_time = record.event_time_ms
        _set_key(single, key)
        return single.SerializeToString()
    head = b""
    if key is not None:
        text = key.encode()
        head = b"\x12" + varint(len(text)) + text
    return head + b"\x18" + varint(len(record.value)) + b"\x40" + varint(record.sequence_id)


def _set_key(of: pb.MessageMetadata | pb.SingleMessageMetadata, key: str | bytes | None) -> None:
    if isinstance(key, bytes):
        of.partition_key = base64.b64encode(key).decode()
        of.partition_key_b64_encoded = True
    elif key is not None:
        of.partition_key = key


def _pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=name, value=value) for name, value in properties.items()]
