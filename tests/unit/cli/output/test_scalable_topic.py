"""A scalable topic for people: the picture of the ring, tables, and the story of what changed."""

from __future__ import annotations

from typing import Any

from anabranch.cli.output.scalable_topic import bar, layout_table, operation_line, stats_view, subscription_view
from anabranch.cli.output.topic_changes import changes


def segment(start: int, end: int, state: str = "ACTIVE", **more: Any) -> dict[str, Any]:
    ends = {"start": start, "end": end}
    return {"hashRange": ends, "state": state, "parentIds": [], "childIds": [], "createdAtEpoch": 0, **more}


def figures(segments: dict[str, Any], **more: Any) -> dict[str, Any]:
    active = sum(one["state"] == "ACTIVE" for one in segments.values())
    counts = {"activeSegments": active, "sealedSegments": len(segments) - active, "totalSegments": len(segments)}
    return {"epoch": 1, "incarnation": 7, "segments": segments, "subscriptions": {}, **counts, **more}


HALVES = {
    "0": segment(0, 0xFFFF, "SEALED", childIds=[1, 2]),
    "1": segment(0, 0x7FFF, parentIds=[0]),
    "2": segment(0x8000, 0xFFFF, parentIds=[0]),
}


class TestBar:
    def test_boxes_are_as_wide_as_their_ranges(self) -> None:
        assert bar([(1, segment(0, 0x7FFF)), (4, segment(0x8000, 0xBFFF)), (5, segment(0xC000, 0xFFFF))], 16) == [
            "├───────┼───┼───┤",
            "│ 1     │ 4 │ 5 │",
        ]

    def test_ids_without_room_are_left_out(self) -> None:
        line, names = bar([(n, segment(n << 12, (n << 12) + 0xFFF)) for n in range(16)], 16)
        assert (line, names) == ("├" + "┼" * 15 + "┤", "│" * 17)

    def test_more_segments_than_columns(self) -> None:
        line, _ = bar([(n, segment(n, n)) for n in range(1000)], 16)
        assert len(line) == 17

    def test_nothing_active(self) -> None:
        assert bar([]) == []


def test_layout_shows_parents_and_children() -> None:
    text = layout_table({"epoch": 1, "segments": HALVES, "properties": {"team": "a"}})
    assert text.startswith("epoch 1, 2 active of 3 segments\n")
    rows = [line.split() for line in text.splitlines()[4:]]
    assert ["1", "0000-7fff", "active", "0", "-", "0"] in rows
    assert ["0", "0000-ffff", "sealed", "-", "1,", "2", "0"] in rows
    assert ["team", "a"] in rows


def test_stats_show_rates_backlog_and_the_operation() -> None:
    rates = {"in": {"msg": {"10": 12.5}, "bytes": {"10": 1250.0}}, "out": {"msg": {"10": 3.0}}}
    busy = {**HALVES, "1": segment(0, 0x7FFF, broker="b1", rates=rates, backlog={"s": 3, "t": 4}, consumers=2)}
    running = {"id": "x", "kind": "SPLIT", "parents": [1], "children": [3, 4], "phase": "SEAL", "reason": "hot"}
    subscriptions = {"s": {"type": "STREAM", "consumerCount": 2, "msgBacklog": 3}}
    text = stats_view(figures(busy, operation=running, subscriptions=subscriptions))
    rows = [line.split() for line in text.splitlines()]
    assert "split of 1 into 3, 4: SEAL (hot)" in text
    assert ["1", "0000-7fff", "active", "b1", "12.5", "3.0", "1,250.0", "7", "2"] in rows
    assert ["s", "STREAM", "2", "3"] in rows


def test_a_subscription_and_its_consumers() -> None:
    session = {"name": "c1", "connected": True, "segments": [1, 2]}
    text = subscription_view({"type": "STREAM", "generation": 4, "sessions": [session], "drained": [0]})
    assert text.splitlines()[-1].split() == ["c1", "yes", "1,", "2"]
    assert subscription_view({"type": "QUEUE", "sessions": []}).endswith("no consumers")


def test_positions_by_segment_are_shown_for_one_subscription() -> None:
    segments = {
        "0": {"position": "3:8", "backlog": 0, "drained": True, "consumer": None, "consumers": 0},
        "10": {"position": "7:1", "backlog": 2, "drained": False, "consumer": "a", "consumers": 1},
        "2": {"position": None, "backlog": None, "drained": False, "consumer": "b", "consumers": 0},
    }
    one = {"type": "STREAM", "segments": segments}
    rows = [line.split() for line in subscription_view({**one, "sessions": []}).splitlines()]
    assert rows.index(["0", "3:8", "0", "yes", "-"]) < rows.index(["10", "7:1", "2", "no", "a"])
    rows = [line.split() for line in stats_view(figures(HALVES, subscriptions={"s": one})).splitlines()]
    assert ["s", "10", "7:1", "2", "no", "a"] in rows and ["s", "2", "-", "-", "no", "b"] in rows
    assert not any(row[:2] == ["s", "0"] for row in rows)


class TestStory:
    def test_first_stats_report_no_change(self) -> None:
        assert changes(None, figures(HALVES)) == []

    def test_a_split_with_its_reason(self) -> None:
        before = figures({"0": segment(0, 0xFFFF)})
        now = figures(HALVES, lastOperation={"id": "x", "reason": "by hand"})
        assert changes(before, now) == [
            "segment 1 begins (split of 0, by hand)",
            "segment 2 begins (split of 0, by hand)",
        ]

    def test_a_merge_and_a_collection(self) -> None:
        now = figures({**{key: HALVES[key] for key in "12"}, "3": segment(0, 0xFFFF, parentIds=[1, 2])})
        assert changes(figures(HALVES), now) == ["segment 3 begins (merge of 1 and 2)", "segment 0 is gone (collected)"]

    def test_phases_are_reported_once(self) -> None:
        running = {"id": "x", "kind": "MERGE", "parents": [1, 2], "children": [3], "phase": "CREATE"}
        now = figures(HALVES, operation=running)
        assert changes(figures(HALVES), now) == [operation_line(running)] == ["merge of 1, 2 into 3: CREATE"]
        assert changes(now, now) == []

    def test_new_incarnation_is_reported(self) -> None:
        now = figures({"0": segment(0, 0xFFFF)}, incarnation=8)
        assert changes(figures(HALVES), now) == ["deleted and created again: 1 segments"]

    def test_consumers_come_and_go(self) -> None:
        one = figures(HALVES, subscriptions={"a": {"consumerCount": 1}, "b": {"consumerCount": 1}})
        two = figures(HALVES, subscriptions={"a": {"consumerCount": 2}, "c": {"consumerCount": 0}})
        assert changes(one, two) == [
            "subscription a has 2 consumers",
            "subscription b is gone",
            "subscription c is there",
        ]

    def test_waiting_segments_are_reported_when_they_change(self) -> None:
        group = {"consumerCount": 1, "segments": {"0": {"backlog": 2}}}
        free = figures(HALVES, subscriptions={"s": {**group, "waiting": {}}})
        stalled = figures(HALVES, subscriptions={"s": {**group, "waiting": {"1": [0], "2": [0]}}})
        assert changes(free, stalled) == [
            "subscription s: segments 1, 2 wait until 2 messages of 0 are acknowledged",
        ]
        assert changes(stalled, stalled) == changes(stalled, free) == []
