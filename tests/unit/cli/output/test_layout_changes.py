"""Splits and merges in words."""

from __future__ import annotations

from anabranch.cli.output.layout_changes import Change, changes
from anabranch.model.layout import Layout
from tests.support.models.layout_histories import merge
from tests.support.models.layout_histories import split as split_of

ONE = Layout.initial(1, now_ms=0)


def test_split_and_merge_are_reported_once() -> None:
    split = split_of(ONE, 0)
    merged = merge(split, 1, 2)
    assert changes({"t": ONE}, {"t": split}) == [Change("t", (0,), (1, 2))]
    assert changes({"t": split}, {"t": merged}) == [Change("t", (1, 2), (3,))]
    assert [one.kind for one in changes({"t": ONE}, {"t": merged})] == ["split", "merge"]
    assert changes({"t": split}, {"t": split}) == changes({}, {"t": split}) == []


def test_change_texts() -> None:
    split, merge, added = Change("t", (0,), (1, 2)), Change("t", (1, 2), (3,)), Change("t", (), (4,))
    assert str(split) == "-- t: split of segment 0 into 1, 2"
    assert str(merge) == "-- t: merge of segment 1 and 2 into 3"
    assert str(added) == "-- t: segments 4 are there"
    assert split.as_object() == {"event": "split", "topic": "t", "parents": [0], "children": [1, 2]}
