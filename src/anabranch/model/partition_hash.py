"""How clients of a regular topic map a key to a partition: hash of the key modulo the number of partitions.

| hash          | default of                                             | input                          |
|---------------|--------------------------------------------------------|--------------------------------|
| `java-string` | Java clients                                           | UTF-16 units of the key        |
| `boost`       | C++, Python and Node.js clients built with Boost 1.81+ | UTF-8 of the key               |
| `boost-1.80`  | the same, built with Boost 1.56 to 1.80 (64 bit)       | UTF-8 of the key               |
| `murmur3-32`  | the SDK and Pulsar's V5 clients                        | UTF-8 of the key               |

All are without sign. A key of bytes is hashed as its base64 text, because that text is the key on the wire. The wire
does not name the hash, so `find_partition_hash` finds it from keys and the partitions that they are in.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from anabranch.model.keyhash import (
    boost_1_80_string_hash,
    boost_string_hash,
    java_string_hash,
    masked,
    murmur3_32,
)

PARTITION_HASH_PROPERTY = "anabranch.partition-hash"
"""The property of a partitioned topic that names its hash."""

CHANCE_MAX = 1e-3
"""A hash is found only if keys of an unrelated routing would agree with it less often than this."""


class PartitionHash(StrEnum):
    JAVA_STRING = "java-string"
    BOOST = "boost"
    BOOST_1_80 = "boost-1.80"
    MURMUR3 = "murmur3-32"

    def of(self, key: str | bytes) -> int:
        """The hash of a key, 31 bits. Cached; for `murmur3-32` of text, hot paths have it already."""
        return _hash_of(self, key)

    def partition_of(self, key: str | bytes, partitions: int) -> int:
        return self.of(key) % partitions


@lru_cache(maxsize=65_536)
def _hash_of(one: PartitionHash, key: str | bytes) -> int:
    return _FUNCTIONS[one](key if isinstance(key, str) else b64encode(key).decode())


def _murmur3(key: str) -> int:
    return masked(murmur3_32(key.encode("utf-8", "surrogatepass")))


def _boost(key: str) -> int:
    return boost_string_hash(key.encode("utf-8", "surrogatepass"))


def _boost_1_80(key: str) -> int:
    return boost_1_80_string_hash(key.encode("utf-8", "surrogatepass"))


_FUNCTIONS: Mapping[PartitionHash, Callable[[str], int]] = {
    PartitionHash.JAVA_STRING: java_string_hash,
    PartitionHash.BOOST: _boost,
    PartitionHash.BOOST_1_80: _boost_1_80,
    PartitionHash.MURMUR3: _murmur3,
}


class Verdict(StrEnum):
    FOUND = "found"  # one hash explains all keys
    UNKNOWN = "unknown"  # too few keys, or several hashes explain them
    MIXED = "mixed"  # no hash explains all keys: producers disagree, or choose partitions themselves


@dataclass(frozen=True, slots=True)
class HashFinding:
    verdict: Verdict
    partition_hash: PartitionHash | None = None  # found, or the hash of most keys in a mixture
    keys: int = 0  # distinct keys that were looked at, per partition
    matches: Mapping[PartitionHash, int] = field(default_factory=dict)  # keys that each hash explains


def find_partition_hash(samples: Mapping[int, Collection[str]], counts: Sequence[int]) -> HashFinding:
    """The hash that explains keys as they are on the wire, by the partition that they are in.

    `counts` has the number of partitions, then the numbers before partitions were added: recent entries may be older
    than the growth, and producers learn of it late.
    """
    pairs = {(key, partition) for partition, keys in samples.items() for key in keys}
    if not pairs or not counts or counts[0] < 2:
        return HashFinding(Verdict.UNKNOWN, keys=len(pairs))
    matches = {one: _explained(one, pairs, counts) for one in PartitionHash}
    complete = [one for one, count in matches.items() if count == len(pairs)]
    chance = min(1.0, sum(1 / count for count in counts)) ** len(pairs)
    if len(complete) == 1 and chance <= CHANCE_MAX:
        return HashFinding(Verdict.FOUND, complete[0], len(pairs), matches)
    if complete:
        return HashFinding(Verdict.UNKNOWN, None, len(pairs), matches)
    leading = max(matches, key=lambda one: matches[one])
    is_most = 2 * matches[leading] > len(pairs) and list(matches.values()).count(matches[leading]) == 1
    return HashFinding(Verdict.MIXED, leading if is_most else None, len(pairs), matches)


def _explained(one: PartitionHash, pairs: Collection[tuple[str, int]], counts: Sequence[int]) -> int:
    found = ((one.of(key), partition) for key, partition in pairs)
    return sum(any(raw % count == partition for count in counts) for raw, partition in found)
