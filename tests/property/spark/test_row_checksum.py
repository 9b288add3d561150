"""The checksum of a task's rows does not depend on how they are cut into pieces, and differs for different rows."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.spark.sink.row_checksum import RowChecksum, read_note

texts = st.one_of(st.none(), st.binary(max_size=6))
columns = st.lists(st.tuples(texts, texts, st.booleans()), max_size=30)
"""Value, key, and whether the row goes to this segment."""


def tallied(rows: list[tuple[bytes | None, bytes | None, bool]], cuts: list[int], first: int = 100) -> RowChecksum:
    """Handed over in pieces that end at `cuts`."""
    made = RowChecksum(first)
    borders = sorted({0, len(rows), *(cut for cut in cuts if cut <= len(rows))})
    for low, high in itertools.pairwise(borders):
        piece = rows[low:high]
        values = pa.array([value for value, _, _ in piece], pa.binary())
        keys = pa.array([key for _, key, _ in piece], pa.binary())
        picked = [number for number, (_, _, mine) in enumerate(piece) if mine]
        made = made.with_rows(first + low, picked, values, keys)
    return made


@given(columns, st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_checksum_does_not_depend_on_the_cuts(
    rows: list[tuple[bytes | None, bytes | None, bool]], one: list[int], other: list[int]
) -> None:
    assert tallied(rows, one) == tallied(rows, other)
    assert tallied(rows, one).rows == sum(mine for _, _, mine in rows)


@given(columns, columns)
def test_different_rows_have_different_checksums(
    rows: list[tuple[bytes | None, bytes | None, bool]], others: list[tuple[bytes | None, bytes | None, bool]]
) -> None:
    def mine(some: list[tuple[bytes | None, bytes | None, bool]]) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(number, value, key) for number, (value, key, is_mine) in enumerate(some) if is_mine]

    assert (tallied(rows, []) == tallied(others, [])) is (mine(rows) == mine(others))


@given(st.lists(st.text(max_size=6), max_size=10))
def test_checksum_of_text_equals_that_of_its_bytes(words: list[str]) -> None:
    rows = range(len(words))
    text, raw = pa.array(words, pa.string()), pa.array([word.encode() for word in words], pa.binary())
    large = pa.array(words, pa.large_string())
    made = [RowChecksum(0).with_rows(0, rows, one, one) for one in (text, raw, large)]
    assert made[0] == made[1] == made[2]
    assert RowChecksum(0).with_rows(0, rows, raw, None).values == made[0].values


def test_note_round_trip_through_entry_metadata() -> None:
    made = RowChecksum(7 << 32).with_rows(7 << 32, [0, 1], pa.array([b"a", None]), pa.array(["k", "k"]))
    assert read_note(made.note()) == made
    found = pb.MessageMetadata()
    found.MergeFromString(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString())
    found.MergeFromString(made.field())
    assert (found.producer_name, found.producer_note) == ("p", made.note())
