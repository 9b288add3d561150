"""The offset algebra over random topics: every message exactly once, keys in order, replays alike, holes reported."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.model.errors import Error
from anabranch.model.position import EARLIEST, Position
from anabranch.model.routing import RingHash
from anabranch.spark.offsets import advance as cuts
from anabranch.spark.offsets import offset as offsets
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.offsets.advance import LostData, TopicRecreated
from anabranch.spark.offsets.key_filter import EVERYTHING, KeyFilter
from anabranch.spark.offsets.offset import Cut, Offset
from anabranch.spark.offsets.partitions import Packing
from anabranch.spark.offsets.topic_view import View
from anabranch.spark.source.subscription_hold import unread_from
from tests.support.models.spark_topic_model import RING, PaperTopic

KEYS = [0, 7, 9_000, 20_000, 32_767, 32_768, 40_000, 50_000, 65_535]
keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)
changes = st.one_of(
    keys.map(lambda some: ("publish", some)),
    st.integers(0, 7).map(lambda at: ("split", at)),
    st.integers(0, 7).map(lambda at: ("merge", at)),
    st.integers(0, 7).map(lambda at: ("roll", at)),
    st.integers(0, 5).map(lambda limit: ("batch", limit)),
    st.just(("restart", 0)),
    st.just(("collect", 0)),
)
histories = st.lists(changes, max_size=40)
topics = st.integers(1, 4)


class Query:
    """Model of a streaming query: it keeps what Spark keeps, the end offset of each batch as text."""

    def __init__(self, topic: PaperTopic, wanted: KeyFilter = EVERYTHING) -> None:
        self.topic = topic
        self.wanted = wanted
        self.bound: Callable[[View], View] = lambda view: view
        self.initial: Offset = {topic.name: cuts.earliest(topic.view())}
        self.log: list[str] = []
        self.seen: dict[int, list[int]] = defaultdict(list)

    @property
    def start(self) -> Offset:
        return offsets.load(json.loads(self.log[-1])) if self.log else self.initial

    def next_end(self, limit: int) -> Offset | None:
        """`limit` entries per segment; 0: all."""
        view = self.bound(self.topic.view())
        views = {self.topic.name: view}
        settled = {self.topic.name: cuts.settled(self.start[self.topic.name], view, wanted=self.wanted)}
        ends = {}
        for (name, one), (begin, end) in cuts.ahead(settled, views).items():
            positions = [at for at in sorted(self.topic.segments[one].entries) if begin <= at < end]
            if positions:
                last = positions[: limit or None][-1]
                ends[name, one] = Position(last.ledger, last.entry + 1)
        reached = cuts.advanced(settled, views, ends)
        return reached if ends or cuts.has_passed(self.start, reached) else None

    def batch(self, limit: int, *, replays: int = 0) -> bool:
        end = self.next_end(limit)
        if end is None:
            return False
        text = json.dumps(offsets.dump(end))
        found = self.ranges(self.start, end)
        for _ in range(replays):  # another driver has the text only, and may find another start for batch 0
            start = self.start if self.log else {self.topic.name: cuts.latest(self.topic.view())}
            assert self.ranges(start, offsets.load(json.loads(text))) == found
        of_key: dict[int, set[int]] = defaultdict(set)
        for one in found:
            for key, number in self.topic.read(one):
                self.seen[key].append(number)
                of_key[key].add(one.segment)
        assert all(len(segments) == 1 for segments in of_key.values()), "a key in two segments of one batch"
        self.log.append(text)
        return True

    def ranges(self, start: Offset, end: Offset) -> list[plan.Range]:
        marks, view = end[self.topic.name].marks, self.topic.view()
        found = plan.ranges(start, end)
        return [one for one in found if cuts.is_of_interest(marks[one.segment], view, self.wanted)]

    def collect(self) -> None:
        """Records of segments that this query has behind it go, oldest first."""
        marks = self.start[self.topic.name].marks
        behind = self.topic.view().ancestors(marks) | {one for one, mark in marks.items() if mark.is_drained}
        for one in sorted(behind):
            self.topic.forget(one)

    def catch_up(self) -> None:
        while self.batch(0):
            pass

    def collect_read(self) -> None:
        """All that the query has read and that takes nothing more goes, as where nothing is retained."""
        view, marks = self.topic.view(), self.start[self.topic.name].marks
        read = {
            one for one, mark in marks.items() if one in view.segments and view.segments[one].is_read(mark.position)
        }
        for one in sorted(view.ancestors(marks) | read):
            self.topic.forget(one)

    def kept(self) -> dict[int, list[int]]:
        """What a subscription keeps that follows this query."""
        view = self.topic.view()
        at = unread_from(self.start, {self.topic.name: view})
        found: dict[int, list[int]] = defaultdict(list)
        for one in sorted(view.segments):
            segment = view.segments[one]
            cursor = at.get(plan.backing_of(view.topic, one, segment.opened()), EARLIEST)
            if cursor < segment.end:
                everything = plan.Range(view.topic, one, max(cursor, segment.first), segment.end, "")
                for key, number in self.topic.read(everything):
                    found[key].append(number)
        return found

    def check(self) -> None:
        """Keys that the query wants have no hole. Others may: a merge can bring them into a segment that is read."""
        for key, numbers in self.seen.items():
            assert numbers == sorted(set(numbers)), f"key {key} out of order, or twice"
            if self.wanted.can_be_in((key, key), RingHash.LOW16):
                assert numbers == list(range(len(numbers))), f"key {key} has a hole"


@settings(max_examples=300)
@given(topics, histories)
def test_every_message_once_and_in_order(segments: int, history: list[tuple[str, object]]) -> None:
    topic = PaperTopic(segments)
    query = Query(topic)
    for what, how in history:
        match what, how:
            case "publish", list():
                topic.publish(how)
            case "split", int():
                topic.split(how)
            case "merge", int():
                topic.merge(how)
            case "roll", int():
                topic.roll(how)
            case "batch", int():
                query.batch(how, replays=2)
            case "collect", _:
                query.collect()
        query.check()
    while query.batch(0, replays=1):
        pass
    query.check()
    assert {key: len(numbers) for key, numbers in query.seen.items()} == topic.written


@settings(max_examples=200)
@given(topics, histories, histories)
def test_subscription_keeps_unread_and_releases_read(
    segments: int, before: list[tuple[str, object]], history: list[tuple[str, object]]
) -> None:
    """Also before the query's start, and whatever is collected once the query has seen that it takes nothing more."""
    topic = PaperTopic(segments)
    for what, how in before:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
    query = Query(topic)
    query.initial = {topic.name: cuts.latest(topic.view())}
    behind = dict(topic.written)
    for what, how in history:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
        elif what == "batch" and isinstance(how, int):
            query.batch(how)
        elif what == "collect":
            query.catch_up()
            query.collect_read()
        seen = {key: behind.get(key, 0) + len(query.seen[key]) for key in topic.written}
        unread = {key: list(range(seen[key], count)) for key, count in topic.written.items() if seen[key] < count}
        assert query.kept() == unread
    query.catch_up()
    assert query.kept() == {}
    query.collect_read()
    assert all(not one.is_sealed for one in topic.segments.values()), "nothing that is sealed is held"
    topic.publish(KEYS)
    query.catch_up()
    assert {key: behind.get(key, 0) + len(query.seen[key]) for key in topic.written} == topic.written


@settings(max_examples=150)
@given(topics, histories, st.tuples(st.integers(0, RING - 1), st.integers(0, RING - 1)))
@example(3, [*[("split", 0)] * 4, ("publish", [0]), ("merge", 0), ("publish", [0])], (1365, 1365))
def test_a_part_of_the_ring_is_read_whole_and_in_order(
    segments: int, history: list[tuple[str, object]], ends: tuple[int, int]
) -> None:
    low, high = sorted(ends)
    topic = PaperTopic(segments)
    query = Query(topic, KeyFilter(spans=((low, high),)))
    for what, how in history:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
        elif what == "batch" and isinstance(how, int):
            query.batch(how, replays=1)
    while query.batch(0):
        pass
    query.check()
    inside = {key: count for key, count in topic.written.items() if low <= key <= high}
    assert {key: len(numbers) for key, numbers in query.seen.items() if low <= key <= high} == inside
    spans = [one.span for one in topic.segments.values()]
    overlapping = [span for span in spans if span[0] <= high and low <= span[1]]
    assert all(any(low <= key <= high for low, high in overlapping) for key in query.seen), "others are not read"


@settings(max_examples=150)
@given(topics, histories, histories)
def test_bounded_stream_continues_without_the_bound(
    segments: int, before: list[tuple[str, object]], after: list[tuple[str, object]]
) -> None:
    topic = PaperTopic(segments)
    query = Query(topic)
    for what, how in before:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
    end = {one: mark.position for one, mark in cuts.latest(topic.view()).marks.items()}
    written = topic.written
    query.bound = lambda view: view.bounded(end)
    for what, how in after:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
        elif what == "batch" and isinstance(how, int):
            query.batch(how, replays=1)
    while query.batch(0):
        pass
    assert {key: len(numbers) for key, numbers in query.seen.items()} == written, "to the end, and no further"
    query.bound = lambda view: view
    while query.batch(0):
        pass
    query.check()
    assert {key: len(numbers) for key, numbers in query.seen.items()} == topic.written


@settings(max_examples=150)
@given(topics, histories, st.integers(1, 5), st.booleans())
def test_a_batch_query_reads_all(segments: int, history: list[tuple[str, object]], count: int, keeps: bool) -> None:
    topic = PaperTopic(segments)
    for what, how in history:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
    view = topic.view()
    found = plan.whole(view, cuts.earliest(view), None)
    packed = plan.partitions(found, Packing(partitions_min=count, partitions_max=count, keeps_key_order=keeps))
    assert len(packed) <= count
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for ranges in packed:
        for one in ranges:
            for key, number in topic.read(one):
                seen[key].append((one.segment, number))
    for key, numbers in seen.items():
        ordered = [number for _, number in sorted(numbers)]
        assert ordered == list(range(topic.written[key])), "by segment and position, keys are in order"
    assert set(seen) == set(topic.written)


@given(topics, histories)
def test_the_latest_cut_leaves_only_what_comes(segments: int, history: list[tuple[str, object]]) -> None:
    topic = PaperTopic(segments)
    for what, how in history:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
    before = topic.written
    query = Query(topic)
    query.initial = {topic.name: cuts.latest(topic.view())}
    assert not query.batch(0)
    topic.publish(KEYS)
    topic.split(0)
    topic.publish(KEYS)
    while query.batch(0, replays=1):
        pass
    assert query.seen == {key: [before.get(key, 0), before.get(key, 0) + 1] for key in KEYS}


@given(topics, histories)
def test_offsets_survive_text(segments: int, history: list[tuple[str, object]]) -> None:
    topic = PaperTopic(segments)
    for what, how in history:
        if what in ("publish", "split", "merge", "roll"):
            getattr(topic, what)(how)
    view = topic.view()
    offset: Offset = {topic.name: cuts.settled(cuts.earliest(view), view)}
    dumped = offsets.dump(offset)
    assert offsets.load(json.loads(json.dumps(dumped))) == offset
    assert json.dumps(offsets.dump(offsets.load(dumped))) == json.dumps(dumped)


def test_a_hole_is_an_error_or_reported() -> None:
    topic = PaperTopic()
    query = Query(topic)
    topic.publish([1])
    query.batch(0)
    topic.publish([1])
    topic.roll(0)
    topic.publish([1])
    topic.trim(0)
    with pytest.raises(LostData, match="segment 0: the next entry to read was 1:1, but the first one there is 2:0"):
        query.next_end(0)
    reported: list[Error] = []
    cut = cuts.settled(query.start[topic.name], topic.view(), reported.append)
    assert [type(one) for one in reported] == [LostData]
    assert cut.marks[0].position == Position(2, 0)


def test_a_trimmed_ledger_that_was_read_is_no_hole() -> None:
    topic = PaperTopic()
    query = Query(topic)
    topic.publish([1])
    query.batch(0)
    topic.roll(0)
    topic.publish([1])
    topic.trim(0)
    assert query.batch(0)
    assert query.seen == {1: [0, 1]}


def test_deleted_unread_segment_is_a_hole_and_its_children_are_read() -> None:
    topic = PaperTopic()
    query = Query(topic)
    topic.publish([1])
    query.batch(0)
    topic.publish([1])
    topic.split(0)
    topic.publish([1, RING - 1])
    topic.forget(0)
    with pytest.raises(LostData, match="the segment is gone"):
        query.next_end(0)
    cut = cuts.settled(query.start[topic.name], topic.view(), lambda _: None)
    assert sorted(cut.marks) == [1, 2]


def test_offsets_of_a_regular_topic_hold_for_the_topic_that_it_became() -> None:
    topic = PaperTopic()
    topic.publish([1])
    query = Query(topic)
    query.batch(0)
    cut, migrated = query.start[topic.name], replace(topic.view(), uid="9", former_uid=topic.view().uid)
    assert cuts.settled(cut, migrated) == replace(cut, uid="9")
    with pytest.raises(TopicRecreated):
        cuts.settled(cut, replace(migrated, former_uid="8"))


def test_a_topic_created_again_is_another_one() -> None:
    topic, again = PaperTopic(), PaperTopic(2, uid="2")
    topic.publish([1])
    query = Query(topic)
    query.batch(0)
    with pytest.raises(TopicRecreated, match="incarnation 2, the checkpoint is of 1"):
        cuts.settled(query.start[topic.name], again.view())
    assert cuts.settled(query.start[topic.name], again.view(), lambda _: None) == cuts.earliest(again.view())


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 10_000), max_size=10), st.integers(1, 5_000))
def test_shares_never_exceed_the_limit(sizes: dict[int, int], limit: int) -> None:
    backlog = {("t", one): size for one, size in sizes.items()}
    given = cuts.shares(backlog, limit)
    assert sum(given.values()) == min(limit, sum(sizes.values()))
    assert all(given[one] <= backlog[one] for one in given)


def test_partitions_of_the_same_plan_are_the_same() -> None:
    ranges = [plan.Range("t", i, Position(i, 0), Position(i, 10 * (i + 1)), f"t-{i}") for i in range(7)]
    one = plan.partitions(ranges, Packing(partitions_max=3))
    assert one == plan.partitions(list(reversed(ranges)), Packing(partitions_max=3))
    assert len(one) == 3
    assert sorted(r for part in one for r in part) == ranges
    cut = plan.partitions(ranges[-1:], Packing(partitions_min=4, keeps_key_order=False))
    assert [part[0].entries for part in cut] == [18, 18, 17, 17]


def test_text_that_is_no_offset_is_refused() -> None:
    for value in (
        {},
        {"v": 2, "topics": {}},
        {"v": 1, "topics": {"t": {"uid": "1", "s": {"0": {"p": "x"}}}}},
        None,
        "x",
    ):
        with pytest.raises(offsets.BadOffset):
            offsets.load(value)
    assert offsets.load({"v": 1, "topics": {}}) == {}
    assert Cut("1", {}) == Cut("1", {})
