"""The shard of a key, and its leader. Pure.

The hash is the server's: the low 32 bits of XXH3-64 over the UTF-8 key. Shards cover the 32-bit range without gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import xxhash

from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable

RING = 1 << 32


def hash_of(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode()) & (RING - 1)


@dataclass(frozen=True, slots=True)
class Shard:
    id: int
    leader: str  # host:port; empty while there is none
    low: int
    high: int  # inclusive


class ShardMap:
    """The shard assignment of a namespace at one time. Immutable: an update is another map."""

    def __init__(self, shards: tuple[Shard, ...]) -> None:
        self.shards = tuple(sorted(shards, key=lambda shard: shard.low))
        self._lows = [shard.low for shard in self.shards]
        self._by_id = {shard.id: shard for shard in self.shards}
        expected = 0
        for shard in self.shards:
            if shard.low != expected or shard.high < shard.low:
                raise AnswerUnreadable(f"shard {shard.id} begins at hash {shard.low}, not at {expected}")
            expected = shard.high + 1
        if expected != RING or len(self._by_id) != len(self.shards):
            raise AnswerUnreadable(f"{len(self.shards)} shards do not cover all hashes exactly once")

    @property
    def ids(self) -> list[int]:
        return [shard.id for shard in self.shards]

    def of_key(self, key: str) -> Shard:
        return self.shards[bisect_right(self._lows, hash_of(key)) - 1]

    def find(self, shard_id: int) -> Shard | None:
        return self._by_id.get(shard_id)


def read_assignments(answer: wire.Assignments, namespace: str) -> ShardMap:
    """The map of the namespace; raises AnswerUnreadable if this client cannot route by it."""
    if namespace not in answer.namespaces:
        raise AnswerUnreadable(f"the assignments lack the namespace {namespace!r}")
    found = answer.namespaces[namespace]
    if found.router not in (wire.ROUTER_XXHASH3, wire.ROUTER_UNKNOWN):
        raise AnswerUnreadable(f"keys are routed by a function that this release does not support ({found.router})")
    return ShardMap(
        tuple(Shard(one.shard, one.leader, one.hash_range.low, one.hash_range.high) for one in found.assignments)
    )
