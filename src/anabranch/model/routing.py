"""The routing function of a topic as data: maps a message to a ring position, and so to a segment.

| routing | message with a key                                  | message without one                                |
|---------|-----------------------------------------------------|----------------------------------------------------|
| `range` | the segment whose range has the key's ring position | the segment that has its sequence id's position    |
| `mod-n` | segment number (partition hash of the key) mod n    | segment number sequence id mod n                   |

The ring position is one half of the key's 32-bit murmur3 (seed 0, UTF-8); entry buckets use the other half. Pulsar
5.0.0-M1 takes the low half, later versions the high half. The wire does not say which, so each topic stores it. The
partition hash is that of the regular topic's producers (`model.partition_hash`); a migrated topic keeps it, because its
first segments were written by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from anabranch.model.keyhash import high16, low16, masked, murmur3_32
from anabranch.model.partition_hash import PartitionHash

_SPREAD = (
    40_503  # odd and near 65536 / golden ratio: consecutive ids are far apart, and 65536 of them hit each position
)


class RingHash(StrEnum):
    """Which half of the murmur3 hash is the ring position."""

    LOW16 = "murmur3-low16"
    HIGH16 = "murmur3-high16"

    def ring_position(self, raw: int) -> int:
        return low16(raw) if self is RingHash.LOW16 else high16(raw)

    def bucket_position(self, raw: int) -> int:
        """Position on the ring of entry buckets: the half that does not choose the segment."""
        return high16(raw) if self is RingHash.LOW16 else low16(raw)


class RoutingKind(StrEnum):
    RANGE = "range"
    MOD_N = "mod-n"  # synthetic layouts: a regular topic's partitions seen as segments


@dataclass(frozen=True, slots=True)
class Routing:
    kind: RoutingKind = RoutingKind.RANGE
    ring_hash: RingHash = RingHash.LOW16
    partition_hash: PartitionHash = PartitionHash.MURMUR3  # of segments that are partitions of a regular topic


RANGE_LOW16 = Routing()
RANGE_HIGH16 = Routing(RoutingKind.RANGE, RingHash.HIGH16)
MOD_N = Routing(RoutingKind.MOD_N)


def key_hash(key: str) -> int:
    """The raw hash of a key. Slow; hot paths use `anabranch.protocol.keyhash.murmur3_32(key.encode())`."""
    return murmur3_32(key.encode())


def keyless_position(sequence_id: int) -> int:
    """Ring position of a message without key: a function of its sequence id.

    A re-send after a split, merge or reconnect therefore goes where the first attempt went. The distribution is even:
    any 65536 consecutive ids hit every position once.
    """
    return sequence_id * _SPREAD & 0xFFFF


def mod_n(raw: int, count: int) -> int:
    """Segment number of a key in a synthetic layout of `count` segments, by the hash `murmur3-32`."""
    return masked(raw) % count


def partition_of(partition_hash: PartitionHash, key: str | bytes | None, raw: int, sequence_id: int, count: int) -> int:
    """The partition of a message: by its key as v4 clients choose it, or by its sequence id. `raw` is the ring hash."""
    if key is None:
        return sequence_id % count
    if partition_hash is PartitionHash.MURMUR3 and isinstance(key, str):
        return masked(raw) % count
    return partition_hash.of(key) % count
