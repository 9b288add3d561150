"""From a run of entries to columns: what is once per entry (checksum, metadata, compression) is done here, what is once
per message by the inner loops. Raises BadEntry, OpaqueEntry for what only others can open, or RunTooLarge.
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
"""(compression, size afterwards, payload) → payload. Raises BadEntry or OpaqueEntry."""

_PACK_U32 = Struct(">I").pack


def read(entries: Sequence[Bytes], *, opened: Opener = inflated, verify: bool = True) -> Run:
    """The messages of these entries, in order. `opened` undoes compression (without it: zlib only); `verify` looks at
    checksums. Markers have no rows. Pieces of chunked messages have none either: `chunked` lists their entries.

    All sizes together must stay below 2 GiB, as in every Arrow array; the caller chooses how much a run is.
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
            raise BadEntry(f"checksum of entry {number} of the run does not fit")
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
    """A plain entry as a batch of one, so that there is one layout to read."""
    single = as_single(of, len(value)).SerializeToString()
    return b"".join((_PACK_U32(len(single)), single, value))
