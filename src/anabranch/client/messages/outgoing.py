"""Messages on their way out, and the entries they travel in. Knows the bytes of an entry; no connections, no time.

An entry is written once and sent again as the same bytes: its sequence ids, its borders and its times never change.
How bodies are packed and which schema they name is the `EntryFormat` of the producer, one for all its lanes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.errors import BadOption
from anabranch.client.messages.compression import Compression
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame_before

FOREVER = float("inf")
RECORD_OVERHEAD_BYTES = 64  # what a record adds to its payload on the wire, about


@dataclass(slots=True, eq=False, init=False)
class OutgoingMessage:
    """One message to send. `ticket` is whatever the owner wants back with the outcome."""

    sequence_id: int
    value: bytes
    key: str | bytes | None
    properties: Mapping[str, str] | None
    event_time_ms: int
    publish_time_ms: int
    deliver_at_ms: int
    deadline: float
    ticket: Any
    hash: int  # of the key; -1: it has none
    order: int  # of the call: what was sent earlier has a lower one, whatever their sequence ids are
    is_doubtful: bool  # it was sent to a segment that is sealed since, and may be stored there
    size_bytes: int  # on the wire, about

    def __init__(  # by hand: with `__post_init__` it would cost a third more, once per message
        self,
        sequence_id: int,
        value: bytes,
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
        size = len(value) + RECORD_OVERHEAD_BYTES
        if key:
            size += len(key)
        if properties:
            size += sum(len(name) + len(text) + 8 for name, text in properties.items())
        self.size_bytes = size


SEQUENCE_MAX = (1 << 63) - 1


def check(key: Any, properties: Any, sequence_id: Any) -> None:
    """Raises BadOption for what cannot be written. Found only when its batch is, it would take others down with it."""
    if key is not None and not isinstance(key, bytes) and not _is_text(key):
        raise BadOption(f"a key is text or bytes, not {key!r}")
    if sequence_id is not None and not (isinstance(sequence_id, int) and 0 <= sequence_id <= SEQUENCE_MAX):
        raise BadOption(f"sequence_id is a number that is not negative, not {sequence_id!r}")
    if properties is None:
        return
    if not isinstance(properties, Mapping):
        raise BadOption(f"properties are a mapping, not {type(properties).__name__}")
    for name, text in properties.items():
        if not (_is_text(name) and _is_text(text)):
            raise BadOption(f"names and values of properties are text: {name!r}: {text!r}")


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return True


@dataclass(slots=True, eq=False)
class EntryFormat:
    """How the entries of one producer are written. `schema_version` is known when the broker has the producer."""

    producer_name: str
    compression: Compression = Compression.NONE
    schema_version: bytes = b""
    chunk_bytes: int | None = None  # larger messages are cut (see `chunking`); None: they are refused


@dataclass(slots=True, eq=False)
class Entry:
    """One sealed batch, one message alone, or one chunk of a message. Of the chunks of a message only the last one has
    the record: its outcome is the message's."""

    records: Sequence[OutgoingMessage]
    head: bytes  # checksum and metadata
    body: bytes | bytearray | memoryview
    first: int  # lowest and highest sequence id
    highest: int
    deadline: float
    is_chunk: bool = False
    was_sent: bool = False  # perhaps more than once; a broker may have it

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)

    @property
    def data(self) -> bytes:
        """The whole entry, as it is stored."""
        return self.head + self.body

    def frame(self, producer_id: int) -> tuple[bytes, bytes | bytearray | memoryview]:
        """SEND, in two pieces: the body is not copied."""
        send = pb.CommandSend(
            producer_id=producer_id,
            sequence_id=self.first,
            num_messages=len(self.records) or 1,
            highest_sequence_id=self.highest,
        )
        if self.is_chunk:
            send.is_chunk = True
        return frame_before(BaseCommand(type=BaseCommand.SEND, send=send), self.head, len(self.body)), self.body


def head(first: OutgoingMessage, style: EntryFormat) -> pb.MessageMetadata:
    """What every entry says of its first message."""
    of = pb.MessageMetadata(
        producer_name=style.producer_name,
        sequence_id=first.sequence_id,
        publish_time=first.publish_time_ms,
    )
    _set_key(of, first.key)
    if style.schema_version:
        of.schema_version = style.schema_version
    return of


def described(record: OutgoingMessage, style: EntryFormat) -> pb.MessageMetadata:
    """What an entry says whose only message this is."""
    of = head(record, style)
    if record.properties:
        of.properties.extend(_pairs(record.properties))
    if record.event_time_ms:
        of.event_time = record.event_time_ms
    if record.deliver_at_ms:
        of.deliver_at_time = record.deliver_at_ms
    return of


def _set_key(of: pb.MessageMetadata, key: str | bytes | None) -> None:
    if isinstance(key, bytes):
        of.partition_key = base64.b64encode(key).decode()
        of.partition_key_b64_encoded = True
    elif key is not None:
        of.partition_key = key


def _pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=name, value=value) for name, value in properties.items()]
