"""Content of an entry: checksum, metadata and batch layout.

    [0e02 | size 4 | BrokerEntryMetadata] [0e01 | CRC32C 4] | size 4 | MessageMetadata | payload
     optional                              optional            the checksum covers everything from here on

An entry is stored and delivered unchanged. Its content is read only for checksums, sticky keys, publish times and
peeking. Functions raise only BadEntry, unless they say what they return instead.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import crc32c
from google.protobuf.message import DecodeError

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.errors import BadEntry, OpaqueEntry

Bytes = bytes | bytearray | memoryview

CHECKSUM_MAGIC = 0x0E01
BROKER_METADATA_MAGIC = 0x0E02
NONE_KEY = b"NONE_KEY"
OPENED_BYTES_MAX = 64 * 1024 * 1024  # no compressed batch is decompressed beyond this

_U16 = Struct(">H").unpack_from
_U32 = Struct(">I").unpack_from
_CHECKED = Struct(">HI").unpack_from  # either magic, then the checksum or the size of the broker's block
_PACK_U16 = Struct(">H").pack
_PACK_U32 = Struct(">I").pack
_METADATA: Callable[[Bytes], pb.MessageMetadata] = pb.MessageMetadata.FromString  # type: ignore[assignment]  # takes views
_SINGLE: Callable[[Bytes], pb.SingleMessageMetadata] = pb.SingleMessageMetadata.FromString  # type: ignore[assignment]  # same


class BatchMessage(NamedTuple):
    """One message of an entry, as an application sees it."""

    metadata: pb.SingleMessageMetadata
    data: bytes


# ---------------------------------------------------------------------------------------------------------- reading


def checksum_ok(payload: Bytes) -> bool:
    """True if the checksum matches or there is none."""
    view = payload if type(payload) is memoryview else memoryview(payload)
    try:
        magic, expected = _CHECKED(view)
        if magic == BROKER_METADATA_MAGIC:
            view = view[6 + expected :]
            magic, expected = _CHECKED(view)
    except struct.error as cause:
        raise BadEntry(f"entry of {len(payload)} bytes is truncated") from cause
    return magic != CHECKSUM_MAGIC or bool(crc32c.crc32c(view[6:]) == expected)


def metadata(payload: Bytes) -> pb.MessageMetadata:
    """The entry's metadata, a new message each time."""
    start, end = _metadata_span(payload)
    return _parsed_metadata(memoryview(payload)[start:end])


def parts(payload: Bytes) -> tuple[pb.MessageMetadata, memoryview]:
    """The entry's metadata, and its payload as stored, compressed or not."""
    start, end = _metadata_span(payload)
    view = memoryview(payload)
    return _parsed_metadata(view[start:end]), view[end:]


def opened(payload: Bytes) -> tuple[pb.MessageMetadata, bytes]:
    """Metadata and payload, decompressed if the broker supports the codec."""
    of, data = parts(payload)
    try:
        return of, _opened(of, data)
    except OpaqueEntry:
        return of, bytes(data)


def publish_time_of(payload: Bytes) -> int:
    """Publish time in ms by the producer's clock; 0 for bytes that are not an entry. Never raises."""
    try:
        start, end = _metadata_span(payload)
        return _METADATA(memoryview(payload)[start:end]).publish_time
    except (BadEntry, DecodeError):
        return 0


def sticky_key(payload: Bytes) -> bytes:
    """The key that Key_Shared hashes: ordering key, else key, else producer and sequence id; else NONE_KEY."""
    try:
        return sticky_key_of(metadata(payload))
    except BadEntry:
        return NONE_KEY


def sticky_key_of(of: pb.MessageMetadata) -> bytes:
    if of.HasField("ordering_key"):
        return of.ordering_key
    if of.HasField("partition_key"):
        key = of.partition_key
        if of.partition_key_b64_encoded:
            try:
                return binascii.a2b_base64(key)
            except (
                binascii.Error,
                ValueError,
            ):  # not base64 although declared so: the text itself still keeps its order
                return key.encode()
        return key.encode()
    return f"{of.producer_name}-{of.sequence_id}".encode()


def split_batch(payload: Bytes) -> list[BatchMessage]:
    """The messages of an entry; an unbatched entry counts as a batch of one.

    Raises OpaqueEntry for codecs other than zlib and for encrypted entries.
    """
    start, end = _metadata_span(payload)
    view = memoryview(payload)
    of = _parsed_metadata(view[start:end])
    return messages_of(of, _opened(of, view[end:]))


def messages_of(of: pb.MessageMetadata, data: bytes) -> list[BatchMessage]:
    """The messages of an entry with decompressed payload; an unbatched entry counts as a batch of one."""
    if not of.HasField("num_messages_in_batch"):
        return [BatchMessage(as_single(of, len(data)), data)]
    messages = []
    offset = 0
    for _ in range(of.num_messages_in_batch):
        message, offset = _record(data, offset)
        messages.append(message)
    if offset != len(data):
        raise BadEntry(f"batch has {len(data) - offset} bytes after its last message")
    return messages


def first_messages(of: pb.MessageMetadata, data: Bytes, most: int) -> list[pb.SingleMessageMetadata]:
    """Metadata of the first messages of a batch whose payload is not compressed. Raises BadEntry."""
    found: list[pb.SingleMessageMetadata] = []
    offset = 0
    for _ in range(min(of.num_messages_in_batch, most)):
        single, body = _record_metadata(data, offset)
        found.append(single)
        offset = body + single.payload_size
    return found


def is_batch(payload: Bytes) -> bool:
    return metadata(payload).HasField("num_messages_in_batch")


def without_messages(payload: Bytes, kept: Sequence[bool]) -> bytes:
    """The batch with only these messages, uncompressed. The slots of the others stay, marked and empty."""
    of, messages = metadata(payload), split_batch(payload)
    records: list[bytes] = []
    for (single, content), is_kept in zip(messages, kept, strict=True):
        if is_kept:
            described, data = single.SerializeToString(), content
        else:
            described = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
            data = b""
        records += (_PACK_U32(len(described)), described, data)
    body = b"".join(records)
    of.compression, of.uncompressed_size = pb.NONE, len(body)
    return seal_entry(of, body)


def _record(data: bytes, offset: int) -> tuple[BatchMessage, int]:
    """One record of the batch layout, and the offset of the next one."""
    single, body = _record_metadata(data, offset)
    end = body + single.payload_size
    return BatchMessage(single, data[body:end]), end


def _record_metadata(data: Bytes, offset: int) -> tuple[pb.SingleMessageMetadata, int]:
    """Metadata of one record of the batch layout, and the offset of its content."""
    try:
        body = offset + 4 + _U32(data, offset)[0]
    except struct.error as cause:
        raise BadEntry("batch ends inside the size of a message") from cause
    try:
        single = _SINGLE(data[offset + 4 : body])
    except DecodeError as cause:
        raise BadEntry("message metadata inside the batch does not parse") from cause
    if not single.IsInitialized() or not body <= body + single.payload_size <= len(data):
        raise BadEntry("message inside the batch is incomplete")
    return single, body


def _opened(of: pb.MessageMetadata, data: memoryview) -> bytes:
    """The payload, decompressed."""
    if of.encryption_keys:
        raise OpaqueEntry("the entry is encrypted")
    if of.compression == pb.NONE:
        return bytes(data)
    return inflated(of.compression, of.uncompressed_size, data)


def inflated(compression: int, size: int, data: Bytes) -> bytes:
    """Decompress a payload to `size` bytes. Raises OpaqueEntry for codecs other than zlib."""
    if compression != pb.ZLIB:
        name = pb.CompressionType.Name(pb.CompressionType.ValueType(compression))
        raise OpaqueEntry(f"compression {name} is decompressed by clients only")
    if size > OPENED_BYTES_MAX:
        raise OpaqueEntry(f"payload of {size} bytes exceeds the limit of {OPENED_BYTES_MAX} for decompression")
    try:
        # One byte more than announced, so that a longer stream is detected without being decompressed.
        opened = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as cause:
        raise BadEntry(f"zlib payload is damaged: {cause}") from cause
    if len(opened) != size:
        raise BadEntry(f"payload decompresses to another size than the {size} bytes announced")
    return opened


def as_single(of: pb.MessageMetadata, size: int) -> pb.SingleMessageMetadata:
    """Metadata of an unbatched message of `size` bytes, in the form that a batch uses."""
    single = pb.SingleMessageMetadata(
        properties=of.properties, payload_size=size, sequence_id=of.sequence_id, event_time=of.event_time
    )
    if of.HasField("partition_key"):
        single.partition_key = of.partition_key
        single.partition_key_b64_encoded = of.partition_key_b64_encoded
    if of.HasField("ordering_key"):
        single.ordering_key = of.ordering_key
    if of.null_value:
        single.null_value = True
    return single


def _after_broker_metadata(payload: Bytes) -> int:
    """Offset where the entry begins after the broker's block; struct.error if it is missing."""
    if _U16(payload)[0] != BROKER_METADATA_MAGIC:
        return 0
    return 6 + int(_U32(payload, 2)[0])


def _metadata_span(payload: Bytes) -> tuple[int, int]:
    """Start and end of the serialized MessageMetadata."""
    try:
        start = _after_broker_metadata(payload)
        if _U16(payload, start)[0] == CHECKSUM_MAGIC:
            start += 6
        end = start + 4 + int(_U32(payload, start)[0])
    except struct.error as cause:
        raise BadEntry(f"entry of {len(payload)} bytes is truncated") from cause
    if end > len(payload):
        raise BadEntry(f"metadata reaches to byte {end} of an entry of {len(payload)}")
    return start + 4, end


def _parsed_metadata(data: memoryview) -> pb.MessageMetadata:
    try:
        of = _METADATA(data)
    except DecodeError as cause:
        raise BadEntry(f"metadata does not parse: {cause}") from cause
    if not of.IsInitialized():
        raise BadEntry("metadata lacks a required field")
    # upb returns text that is not UTF-8 as bytes.
    if not isinstance(of.producer_name, str) or not isinstance(of.partition_key, str):
        raise BadEntry("metadata has text that is not UTF-8")
    return of


# --------------------------------------------------------------------------------------------------------- building


def seal_entry(of: pb.MessageMetadata, payload: Bytes, *, checksum: bool = True) -> bytes:
    """Metadata and payload as an entry."""
    if checksum:
        return entry_head(of, payload) + payload
    data = of.SerializeToString()
    return b"".join((_PACK_U32(len(data)), data, payload))


def entry_head(of: pb.MessageMetadata, payload: Bytes) -> bytes:
    """The part before the payload: checksum and metadata."""
    data = of.SerializeToString()
    covered = _PACK_U32(len(data)) + data
    found = crc32c.crc32c(payload, crc32c.crc32c(covered))
    return b"".join((_PACK_U16(CHECKSUM_MAGIC), _PACK_U32(found), covered))


def build_entry(
    data: bytes,
    *,
    producer_name: str = "producer",
    sequence_id: int = 0,
    publish_time: int = 0,
    key: str | None = None,
    ordering_key: bytes | None = None,
    properties: Mapping[str, str] | None = None,
    checksum: bool = True,
) -> bytes:
    """An entry with one message, without batch layout and compression."""
    of = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time,
        partition_key=key,
        ordering_key=ordering_key,
        properties=_key_values(properties),
        uncompressed_size=len(data),
    )
    return seal_entry(of, data, checksum=checksum)


def build_batch(
    messages: Sequence[bytes],
    *,
    producer_name: str = "producer",
    sequence_id: int = 0,
    publish_time: int = 0,
    keys: Sequence[str | None] | None = None,
    compress: bool = False,
    checksum: bool = True,
) -> bytes:
    """A batch entry, optionally zlib-compressed. As in stock clients, the entry has the key of its first message."""
    of_keys = [None] * len(messages) if keys is None else list(keys)
    parts: list[bytes] = []
    for index, (data, key) in enumerate(zip(messages, of_keys, strict=True)):
        single = pb.SingleMessageMetadata(
            payload_size=len(data), partition_key=key, sequence_id=sequence_id + index
        ).SerializeToString()
        parts += (_PACK_U32(len(single)), single, data)
    payload = b"".join(parts)
    of = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time,
        partition_key=of_keys[0] if of_keys else None,
        num_messages_in_batch=len(messages),
        highest_sequence_id=sequence_id + max(0, len(messages) - 1),
        uncompressed_size=len(payload),
        compression=pb.ZLIB if compress else pb.NONE,
    )
    return seal_entry(of, zlib.compress(payload) if compress else payload, checksum=checksum)


def add_broker_metadata(entry: Bytes, *, broker_timestamp: int, index: int) -> bytes:
    """The entry with a broker-entry-metadata block before it."""
    block = pb.BrokerEntryMetadata(broker_timestamp=broker_timestamp, index=index).SerializeToString()
    return b"".join((_PACK_U16(BROKER_METADATA_MAGIC), _PACK_U32(len(block)), block, entry))


def _key_values(pairs: Mapping[str, str] | None) -> Iterable[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in (pairs or {}).items()]
