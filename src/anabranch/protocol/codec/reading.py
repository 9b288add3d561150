"""Entries to columns: handles checksum, metadata and compression per entry; the inner loops handle the messages.

Raises BadEntry, OpaqueEntry for entries that only their client can read, or RunTooLarge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import core
from anabranch.protocol.codec.columns import Body
from anabranch.protocol.codec.run import Run
from anabranch.protocol.entry import Bytes, as_single, checksum_ok, inflated, parts
from anabranch.protocol.errors import BadEntry, OpaqueEntry

Opener = Callable[[int, int, memoryview], Bytes]
"""(compression, decompressed size, payload) → payload. Raises BadEntry or OpaqueEntry."""

_PACK_U32 = Struct(">I").pack


def read(entries: Sequence[Bytes], *, opened: Opener = inflated, verify: bool = True) -> Run:
    """The messages of these entries, in order. `opened` decompresses (default: zlib only); `verify` checks checksums.

    Markers have no rows, nor have pieces of chunked messages: `chunked` lists the entries of these. All sizes together
    must stay below 2 GiB, as in every Arrow array; the caller chooses the size of a run.
    """
    bodies: list[Body] = []
    numbers: list[int] = []
    times: list[int] = []
    names: list[str] = []
    sequences: list[int] = []
    sizes: list[int] = []
    versions: list[bytes | None] = []
    chunked: list[int] = []
    for number, entry in enumerate(entries):
        if verify and not checksum_ok(entry):
            raise BadEntry(f"checksum mismatch in entry {number} of the run")
        of, payload = parts(entry)
        is_batch = of.HasField("num_messages_in_batch")
        times.append(of.publish_time)
        names.append(of.producer_name)
        sequences.append(of.sequence_id)
        sizes.append(of.num_messages_in_batch if is_batch else 0)
        versions.append(of.schema_version if of.HasField("schema_version") else None)
        if of.HasField("marker_type"):
            continue
        if of.num_chunks_from_msg > 1:
            chunked.append(number)
            continue
        if of.encryption_keys:
            raise OpaqueEntry("the entry is encrypted")
        body = opened(of.compression, of.uncompressed_size, payload) if of.compression else payload
        numbers.append(number)
        bodies.append(Body(body, of.num_messages_in_batch) if is_batch else Body(alone(of, body), 1))
    return Run(core.decode(bodies), numbers, times, names, sequences, sizes, versions, chunked)


def alone(of: pb.MessageMetadata, value: Bytes) -> bytes:
    """An unbatched entry as a batch of one, so that there is one layout to decode."""
    single = as_single(of, len(value)).SerializeToString()
    return b"".join((_PACK_U32(len(single)), single, value))
