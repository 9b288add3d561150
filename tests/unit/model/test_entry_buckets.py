"""Entry buckets: from splits to ranges and back, and from positions and stamps to buckets."""

from __future__ import annotations

import pytest

from anabranch.model.entry_buckets import EVERY, BadBuckets, EntryBuckets
from anabranch.model.segment import bucket_splits
from anabranch.protocol.keyhash import low16, murmur3_32

FOUR = EntryBuckets(bucket_splits(4))


def test_splits_are_the_first_hashes_of_all_buckets_but_the_first() -> None:
    assert FOUR.splits == (16384, 32768, 49152)
    assert FOUR.ranges == ((0, 16383), (16384, 32767), (32768, 49151), (49152, 65535))
    assert EntryBuckets().ranges == ((0, 65535),)
    assert EntryBuckets.of_ranges(FOUR.ranges).splits == FOUR.splits


@pytest.mark.parametrize(("key", "bucket"), [("key-1", 0), ("a", 1), ("my-key", 2), ("hello", 3)])
def test_keys_of_pulsars_vectors_are_in_their_buckets(key: str, bucket: int) -> None:
    assert FOUR.bucket(low16(murmur3_32(key))) == bucket


def test_a_stamp_over_several_buckets_belongs_to_every_bucket() -> None:
    assert FOUR.of_stamp(0, 16383) == 0
    assert FOUR.of_stamp(49152, 65535) == 3
    assert FOUR.of_stamp(16383, 16384) == EVERY


@pytest.mark.parametrize(
    "ranges", [((0, 10), (12, 65535)), ((0, 10), (5, 65535)), ((1, 65535),), ((0, 100),), ((0, 65535), (65536, 70000))]
)
def test_ranges_that_do_not_cover_the_ring_are_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(BadBuckets):
        EntryBuckets.of_ranges(ranges)
