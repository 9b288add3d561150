"""Which keys a query wants: what users write, which segments can have them, which rows are theirs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.model.keyhash import murmur3_32
from anabranch.model.routing import RingHash
from anabranch.spark.offsets.key_filter import EVERYTHING, KeyFilter, read_keys, read_spans

LOW, HIGH = RingHash.LOW16, RingHash.HIGH16


def test_what_users_write() -> None:
    assert read_keys("a, b,c") == {b"a", b"b", b"c"}
    assert read_keys('["a,b", "c"]') == {b"a,b", b"c"}
    assert read_spans("0000-7fff") == ((0, 32_767),)
    assert read_spans("8000-8fff,0-00ff, 0100-01ff") == ((0, 511), (32_768, 36_863)), "neighbours are joined"
    for text in ("", "[", "[]", " , ", "[1]"):
        with pytest.raises(ValueError):
            read_keys(text)
    for text in ("", "1", "2-1", "0-10000", "x-y"):
        with pytest.raises(ValueError):
            read_spans(text)


def test_segments_that_can_have_them() -> None:
    at = {ring: ring.ring_position(murmur3_32(b"ada")) for ring in RingHash}
    wanted = KeyFilter(keys=frozenset({b"ada"}))
    for ring in RingHash:
        assert wanted.can_be_in((at[ring], at[ring]), ring)
        assert not wanted.can_be_in((at[ring] + 1, 65_535), ring)
    part = KeyFilter(spans=((100, 200),))
    assert part.can_be_in((200, 300), LOW)
    assert not part.can_be_in((201, 300), LOW)
    assert not KeyFilter(frozenset({b"ada"}), ((0, 0),)).can_be_in((1, 65_535), LOW)
    assert EVERYTHING.is_all
    assert EVERYTHING.can_be_in((0, 0), LOW)


@pytest.mark.parametrize("ring", [LOW, HIGH])
def test_rows_that_are_theirs(ring: RingHash) -> None:
    names = [f"key-{i}".encode() for i in range(200)]
    keys = pa.array([*names, None], pa.binary())
    some = KeyFilter(keys=frozenset(names[:3])).mask(keys, ring).to_pylist()
    assert some == [True] * 3 + [False] * 198
    half = KeyFilter(spans=((0, 0x7FFF),)).mask(keys, ring).to_pylist()
    assert half == [ring.ring_position(murmur3_32(name)) <= 0x7FFF for name in names] + [False]
    assert 0 < sum(half) < 200
    both = KeyFilter(frozenset(names[:100]), ((0, 0x7FFF),)).mask(keys, ring).to_pylist()
    assert both == [*half[:100]] + [False] * 101
