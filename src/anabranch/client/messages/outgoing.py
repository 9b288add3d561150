"""Messages to send, and the entries that carry them.

An entry is encoded once and resent as the same bytes: its sequence ids, its bounds and its times never change. The
`EntryFormat` of a producer says how bodies are compressed and which schema they name; all its segments share it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.arguments import check_properties, check_whole, is_text
from anabranch.client.encryption.entry_cipher import EntryCipher
from anabranch.client.errors import BadOption
from anabranch.client.messages.compression import Compression
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_before

FOREVER = float("inf")
NEVER_SENT = 1 << 62  # `stored_under` of a message that no broker has received
RECORD_OVERHEAD_BYTES = 64  # estimate of the metadata per message on the wire


@dataclass(slots=True, eq=False, init=False)
class OutgoingMessage:
    """One message to send. `ticket` is returned to the owner with the outcome."""

    sequence_id: int
    value: bytes | None  # None: a null value
    key: str | bytes | None
    properties: Mapping[str, str] | None
    event_time_ms: int
    publish_time_ms: int
    deliver_at_ms: int
    deadline: float
    ticket: Any
    hash: int  # of the key; -1: no key
    order: int  # of the send calls, independent of sequence ids
    stored_under: dict[int, int] | None  # by segment with entry buckets in which it was (see `bucket_entries`)
    is_doubtful: bool  # sent to a segment that was sealed meanwhile, and may be stored there
    size_bytes: int  # estimate of its size on the wire

    def __init__(  # written out: `__post_init__` would cost a third more per message
        self,
        sequence_id: int,
        value: bytes | None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        publish_time_ms: int = 0,
        deliver_at_ms: int = 0,
        deadline: float = FOREVER,
        ticket: Any = None,
        hash: int = -1,
        order: int = 0,
    ) -> None:
        self.sequence_id = sequence_id
        self.value = value
        self.key = key
        self.properties = properties
        self.event_time_ms = event_time_ms
        self.publish_time_ms = publish_time_ms
        self.deliver_at_ms = deliver_at_ms
        self.deadline = deadline
        self.ticket = ticket
        self.hash = hash
        self.order = order
        self.is_doubtful = False
        self.stored_under = None
        size = RECORD_OVERHEAD_BYTES if value is None else len(value) + RECORD_OVERHEAD_BYTES
        if key:
            size += len(key)
        if properties:
            size += sum(len(name) + len(text) + 8 for name, text in properties.items())
        self.size_bytes = size


def check_tombstone(key: Any) -> None:
    """For a message without a value. Without a key it would delete nothing, so it is a mistake."""
    if key is None:
        raise BadOption("a message with the value None deletes its key, so it needs key=")


def check(key: Any, properties: Any, sequence_id: Any) -> None:
    """Raises BadOption for values that cannot be encoded. Found later, they would fail their whole batch."""
    if key is not None and not isinstance(key, bytes) and not is_text(key):
        raise BadOption(f"a key must be text or bytes, not {key!r}")
    if sequence_id is not None:
        check_whole(sequence_id, "sequence_id", 0)
    check_properties(properties)


@dataclass(slots=True, eq=False)
class EntryFormat:
    """Format of the entries of one producer. `schema_version` is known once the broker has opened the producer."""

    producer_name: str
    compression: Compression = Compression.NONE
    schema_version: bytes = b""
    chunk_bytes: int | None = None  # larger messages are chunked (see `chunking`); None: refused
    cipher: EntryCipher | None = None  # encrypts bodies


@dataclass(slots=True, eq=False)
class Entry:
    """One closed batch, one single message, or one chunk of a message. Only the last chunk of a message has the record,
    because its outcome is the outcome of the message."""

    records: Sequence[OutgoingMessage]
    head: bytes  # checksum and metadata
    body: bytes | bytearray | memoryview
    first: int  # lowest and highest sequence id
    highest: int
    deadline: float
    is_chunk: bool = False
    was_sent: bool = False  # at least once; a broker may have stored it
    is_continuation: bool = False  # a part of a divided batch, and not the first one
    oldest: int = -1  # lowest order in this and the later entries of a divided batch; -1: that of its first record

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)

    @property
    def data(self) -> bytes:
        """The whole entry as it is stored."""
        return self.head + self.body

    def frame(self, producer_id: int) -> tuple[bytes, bytes | bytearray | memoryview]:
        """The SEND command in two pieces, so that the body is not copied."""
        send = pb.CommandSend(
            producer_id=producer_id,
            sequence_id=self.first,
            num_messages=len(self.records) or 1,
            highest_sequence_id=self.highest,
        )
        if self.is_chunk:
            send.is_chunk = True
        return frame_before(BaseCommand(type=BaseCommand.SEND, send=send), self.head, len(self.body)), self.body


def head(first: OutgoingMessage, entry_format: EntryFormat) -> pb.MessageMetadata:
    """Metadata that every entry has, from its first message."""
    of = pb.MessageMetadata(
        producer_name=entry_format.producer_name,
        sequence_id=first.sequence_id,
        publish_time=first.publish_time_ms,
    )
    _set_key(of, first.key)
    if entry_format.schema_version:
        of.schema_version = entry_format.schema_version
    return of


def described(record: OutgoingMessage, entry_format: EntryFormat) -> pb.MessageMetadata:
    """Metadata of an entry with only this message."""
    of = head(record, entry_format)
    if record.properties:
        of.properties.extend(_pairs(record.properties))
    if record.event_time_ms:
        of.event_time = record.event_time_ms
    if record.deliver_at_ms:
        of.deliver_at_time = record.deliver_at_ms
    if record.value is None:
        of.null_value = True
    return of


def _set_key(of: pb.MessageMetadata, key: str | bytes | None) -> None:
    if isinstance(key, bytes):
        of.partition_key = base64.b64encode(key).decode()
        of.partition_key_b64_encoded = True
    elif key is not None:
        of.partition_key = key


def _pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=name, value=value) for name, value in properties.items()]
