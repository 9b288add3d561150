"""State records: encoded ones are decoded; damaged bytes raise only the typed error."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.model.position import Position
from anabranch.storage.cursor.ack_bitmap import CHUNK_BYTES
from anabranch.storage.cursor.ack_state import AckSnapshot, LedgerAcks
from anabranch.storage.cursor.state_codec import (
    BadStateRecord,
    BlobSaved,
    CursorDeleted,
    CursorDelta,
    CursorProperties,
    CursorSaved,
    SnapshotBegins,
    SnapshotCommitted,
    StateRecord,
    decode,
    encode,
)

numbers = st.integers(0, (1 << 63) - 1)
small = st.integers(0, 5000)
positions = st.builds(Position, st.integers(-1, 1 << 62), st.integers(-1, 1 << 62))
names = st.text(max_size=12)
properties = st.dictionaries(names, names, max_size=3)
masks = st.integers(1, 1 << 130)
chunks = st.binary(max_size=CHUNK_BYTES).map(lambda raw: raw.ljust(CHUNK_BYTES, b"\0"))
ledgers = st.builds(
    LedgerAcks,
    numbers,
    st.lists(st.tuples(small, small), max_size=3).map(tuple),
    st.lists(st.tuples(small, chunks), max_size=3).map(tuple),
    st.lists(st.tuples(small, masks), max_size=3).map(tuple),
)


def ascending(gaps: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """(ledger step, gap, count) to ascending runs."""
    runs, ledger, entry = [], 1, 0
    for step, gap, count in gaps:
        if step:
            ledger, entry = ledger + step, 0
        runs.append((ledger, entry + gap, count))
        entry += gap + count
    return tuple(runs)


runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9000)), max_size=6).map(ascending)
records = st.one_of(
    st.builds(
        CursorSaved,
        names,
        properties,
        st.builds(AckSnapshot, positions, st.lists(ledgers, max_size=3).map(tuple)),
        st.integers(-1, 1 << 62),
    ),
    st.builds(
        CursorDelta,
        names,
        positions,
        st.integers(-1, 1 << 62),
        st.booleans(),
        runs,
        st.lists(st.tuples(numbers, numbers, masks), max_size=3).map(tuple),
    ),
    st.builds(CursorProperties, names, properties),
    st.builds(CursorDeleted, names),
    st.builds(BlobSaved, names, st.binary(max_size=50)),
    st.just(SnapshotBegins()),
    st.just(SnapshotCommitted()),
)


@given(st.lists(records, max_size=5))
def test_decode_inverts_encode(given_records: list[StateRecord]) -> None:
    assert decode(encode(given_records)) == given_records


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_truncated_bytes_raise_the_typed_error(given_records: list[StateRecord], data: st.DataObject) -> None:
    whole = encode(given_records)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        assert decode(cut) == given_records[: len(decode(cut))]
    except BadStateRecord:
        return


@given(st.binary(max_size=60))
@example(b"\x04\x02\x01\xff")
def test_random_bytes_raise_the_typed_error(data: bytes) -> None:
    try:
        decode(bytes([1]) + data)
    except BadStateRecord:
        return


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(BadStateRecord, match="format 2"):
        decode(b"\x02")
