"""What a segment's owner remembers: mandates, moves, drains, and the two texts that carry them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.segment.reader_fence import ReaderFence
from anabranch.broker.segment.segment_state import (
    MOVES_MAX,
    NEVER,
    OwnedCursorState,
    OwnedSegmentState,
    SealNote,
    deleted_at_ms,
    fencing_token_on,
    tombstone_properties,
)
from anabranch.controller.segment_host import (
    Drained,
    FencingToken,
    OtherIncarnation,
    Refilled,
    SegmentRef,
    StaleRequest,
    StaleTerm,
)
from anabranch.model.names import TopicName
from anabranch.model.position import Position

NAME = TopicName.parse("segment://public/default/orders/0000-ffff-0")
REF = SegmentRef(NAME, 3, 0)
CHILD = SegmentRef(TopicName.parse("segment://public/default/orders/0000-7fff-1"), 3, 1)


def fresh() -> OwnedSegmentState:
    return OwnedSegmentState(REF, "op", FencingToken(2, 5))


def test_lower_fencing_tokens_are_refused_and_equal_ones_are_not() -> None:
    state = fresh()
    state.admit(FencingToken(2, 5))
    with pytest.raises(StaleRequest):
        state.admit(FencingToken(2, 4))
    with pytest.raises(StaleTerm):
        state.admit(FencingToken(1, 99))
    state.admit(FencingToken(3, 0))
    assert state.fencing_token == FencingToken(3, 0)


def test_new_incarnation_is_reported() -> None:
    with pytest.raises(OtherIncarnation):
        fresh().check_incarnation(SegmentRef(NAME, 4, 0))


def test_only_sealed_segments_report_drains_once_per_change() -> None:
    state = fresh()
    assert state.update_drained("s", has_backlog=False) is None
    state.sealed = SealNote(7, "op", ())
    assert state.update_drained("s", has_backlog=True) is None
    assert state.update_drained("s", has_backlog=False) == Drained(REF, "s", 0)
    assert state.update_drained("s", has_backlog=False) is None
    assert state.update_drained("s", has_backlog=True) == Refilled(REF, "s", 1)
    assert state.update_drained("s", has_backlog=True) is None
    assert state.update_drained("s", has_backlog=False) == Drained(REF, "s", 1)
    assert state.drained == {("s", 1)}


def test_last_moves_of_a_cursor_are_kept() -> None:
    state = fresh()
    for number in range(MOVES_MAX + 1):
        state.note_move("s", f"m{number}")
    assert not state.has_moved("s", "m0")
    assert state.has_moved("s", "m1")
    assert not state.has_moved("t", "m1")


mandates = st.builds(FencingToken, st.integers(0, 1 << 40), st.integers(0, 1 << 40))
names = st.text(min_size=1, max_size=8)
notes = st.none() | st.builds(SealNote, st.integers(0, 1 << 45), names, st.sampled_from([(), (CHILD,), (CHILD, REF)]))
places = st.none() | st.builds(Position, st.integers(-1, 1 << 40), st.integers(-1, 1 << 40))
fences = st.builds(ReaderFence, st.integers(0, 1 << 40), names)
cursors = st.dictionaries(
    names,
    st.builds(
        OwnedCursorState,
        st.lists(names, max_size=3),
        st.booleans(),
        st.integers(0, 9),
        st.booleans(),
        places,
        fences,
        places,
    ),
)


@given(mandates, mandates, notes, cursors)
def test_state_is_restored_from_identity_and_dump(
    born: FencingToken, later: FencingToken, sealed: SealNote | None, known: dict[str, OwnedCursorState]
) -> None:
    """The record may be older than the state, or newer: the highest mandate counts."""
    state = OwnedSegmentState(REF, "op", born, sealed, known)
    properties = state.identity()
    state.fencing_token = later
    found = OwnedSegmentState.load(NAME, properties, state.dump())
    state.fencing_token = max(born, later)
    assert found == state
    assert fencing_token_on(properties) == born


def test_state_of_an_earlier_version_loads_without_fences() -> None:
    blob = b'{"mandate":[2,5],"cursors":{"s":[["m"],true,1],"t":[[],false,0,true]}}'
    found = OwnedSegmentState.load(NAME, fresh().identity(), blob)
    assert found.cursors == {"s": OwnedCursorState(["m"], True, 1), "t": OwnedCursorState(is_undecided=True)}


def test_tombstone_keeps_the_fencing_token() -> None:
    text = tombstone_properties(FencingToken(4, 2), 77)
    assert (fencing_token_on(text), deleted_at_ms(text)) == (FencingToken(4, 2), 77)
    assert fencing_token_on({}) == NEVER
