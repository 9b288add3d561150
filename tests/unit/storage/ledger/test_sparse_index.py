"""The sparse index: codec, damage, and the three ways to search it."""

from __future__ import annotations

import pytest

from anabranch.storage.ledger.record_format import INDEX_MAGIC, NewerFormat, encode_file_head
from anabranch.storage.ledger.sparse_index import (
    IndexPoint,
    SparseIndex,
    decode_index,
    encode_index_head,
    encode_point,
    place_of_point,
)

POINTS = [IndexPoint(0, 32, 0, 0, 50), IndexPoint(10, 1000, 25, 600, 40), IndexPoint(20, 2000, 60, 1300, 90)]


def encoded(ledger: int = 5) -> bytes:
    return encode_index_head(ledger) + b"".join(map(encode_point, POINTS))


def test_points_round_trip_through_the_file() -> None:
    assert decode_index(encoded(), 5, "f") == POINTS
    assert len(encoded()) == place_of_point(3)


def test_damage_loses_only_the_points_after_it() -> None:
    data = bytearray(encoded())
    data[place_of_point(1) + 3] ^= 1
    assert decode_index(bytes(data), 5, "f") == POINTS[:1]
    assert decode_index(encoded()[:-1], 5, "f") == POINTS[:2]
    assert decode_index(b"", 5, "f") == []
    assert decode_index(encoded(), 6, "f") == [], "another ledger's index"


def test_a_newer_index_is_refused() -> None:
    with pytest.raises(NewerFormat):
        decode_index(encode_file_head(INDEX_MAGIC, 5, format_=9), 5, "f")


def test_searching() -> None:
    index = SparseIndex(500, 10, POINTS)
    assert index.before(0) == POINTS[0]
    assert index.before(9) == POINTS[0]
    assert index.before(10) == POINTS[1]
    assert index.before(1000) == POINTS[2]
    assert SparseIndex(1, 1).before(3) is None
    assert index.before_time(10) == POINTS[0]
    assert index.before_time(51) == POINTS[1], "times are searched through their running maximum: 50, 50, 90"
    assert index.before_time(90) == POINTS[1]
    assert index.before_time(91) == POINTS[2]


def test_a_point_is_wanted_per_step_of_bytes_or_entries() -> None:
    index = SparseIndex(500, 10)
    assert index.wants(0, 32)
    index.add(POINTS[0])
    assert not index.wants(9, 531)
    assert index.wants(9, 532)
    assert index.wants(10, 100)


def test_cut_removes_later_points() -> None:
    index = SparseIndex(500, 10, POINTS)
    index.cut(20)
    assert index.points == POINTS[:2]
    assert index.before(50) == POINTS[1]
