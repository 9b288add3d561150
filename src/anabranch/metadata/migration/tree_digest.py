"""Order-independent digest of a tree in buckets by key: two trees are equal if all buckets are. Pure.

It takes the same memory for any tree. A key that changed during a scan makes only its own bucket incomparable. Hashes
are those of the running process, so digests of different processes cannot be compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from anabranch.metadata.interface import Item

BUCKETS = 1 << 18
_MASK = (1 << 64) - 1


def bucket_of(key: str) -> int:
    return hash(key) & (BUCKETS - 1)


class TreeDigest:
    """Value, version and times of every key count; whether it is ephemeral does not."""

    def __init__(self) -> None:
        self._sums = array("Q", bytes(8 * BUCKETS))
        self.records = 0

    def add(self, items: Iterable[Item]) -> None:
        sums = self._sums
        for key, found in items:
            bucket = hash(key) & (BUCKETS - 1)  # `bucket_of` without the call
            content = hash((key, found.value, found.version, found.created_ms, found.modified_ms))
            sums[bucket] = (sums[bucket] + content + 1) & _MASK
            self.records += 1

    def differing(self, other: TreeDigest) -> Iterator[int]:
        """Buckets with different content."""
        if self._sums == other._sums:
            return
        for bucket, (one, two) in enumerate(zip(self._sums, other._sums, strict=True)):
            if one != two:
                yield bucket
