"""Metadata of an entry that dispatch needs. Batches are never opened."""

from __future__ import annotations

from anabranch.broker.subscription.chunk_affinity import Chunk
from anabranch.model.entry_buckets import EVERY, EntryBuckets
from anabranch.model.routing import RingHash
from anabranch.protocol import entry as entries
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.keyhash import key_shared_slot, murmur3_32
from anabranch.storage.interface import Payload
from anabranch.storage.topic.topic_log import StoredEntry

DELIVER_AT_TAG = b"\x98\x01"  # field 19, varint
CHUNKS_TAG = b"\xd8\x01"  # field 27, varint
CHECKSUM_MAGIC = b"\x0e\x01"


def deliver_at_of(entry: StoredEntry) -> int:
    """`deliver_at_time` in ms; 0 if the entry may be delivered at once.

    Most entries have none, and their bytes do not contain the field's tag: a search replaces the parse.
    """
    if DELIVER_AT_TAG not in _metadata_bytes(entry):
        return 0
    try:
        metadata = entries.metadata(entry.payload)
    except ProtocolError:
        return 0  # the consumer acknowledges it with a validation error
    return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else 0


def chunk_of(entry: StoredEntry) -> Chunk | None:
    """The chunk that the entry is; None for a complete message. Searches before it parses, as `deliver_at_of`."""
    if CHUNKS_TAG not in _metadata_bytes(entry):
        return None
    try:
        metadata = entries.metadata(entry.payload)
    except ProtocolError:
        return None  # the consumer detects it
    if metadata.num_chunks_from_msg < 2:
        return None
    return Chunk(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)


def _metadata_bytes(entry: StoredEntry) -> bytes:
    payload = entry.payload
    start = 6 if payload[:2] == CHECKSUM_MAGIC else 0
    end = start + 4 + int.from_bytes(payload[start : start + 4], "big")
    return bytes(payload[start:end])


def slot_of(entry: StoredEntry) -> int:
    """Key_Shared slot of an entry."""
    try:
        key = entries.sticky_key(entry.payload)
    except ProtocolError:
        key = b"NONE_KEY"
    return key_shared_slot(key)


def bucket_of(entry: StoredEntry, buckets: EntryBuckets, ring_hash: RingHash) -> int:
    """Entry bucket of an entry: by its stamp, or by the key of its only message; EVERY if it may have several."""
    try:
        of = entries.metadata(entry.payload)
        if of.HasField("entry_hash_min") and of.HasField("entry_hash_max"):
            return buckets.of_stamp(of.entry_hash_min, of.entry_hash_max)
        if of.HasField("num_messages_in_batch") and of.num_messages_in_batch > 1:
            return EVERY
        if not of.HasField("ordering_key") and not of.HasField("partition_key"):
            return buckets.bucket(0)
        return buckets.bucket(ring_hash.bucket_position(murmur3_32(entries.sticky_key_of(of))))
    except ProtocolError:
        return buckets.bucket(0)  # it cannot be read, so it has no key to keep in order


def batch_size_of(payload: Payload) -> int:
    """Number of messages of a batch; 0 for an entry that is no batch."""
    metadata = entries.metadata(payload)
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
