"""What ancestors have of a producer: asked once when it is final, never mixed up between lives of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.errors import TopicNotFound
from anabranch.broker.publish.sequence_ids import Last
from anabranch.broker.segment_host.ancestor_sequences import AncestorSequences, LastSequence, minimal_ancestors
from anabranch.broker.segment_host.topic_layouts import ScalableTopic, find_segment
from anabranch.controller.records.record_cache import RecordCache
from anabranch.controller.records.topic_record import (
    MigratedFrom,
    MigrationOptions,
    TopicRecord,
    committed,
    migration_planned,
)
from anabranch.controller.records.topic_record_codec import encode_record
from anabranch.metadata.interface import ANY
from anabranch.metadata.open import open_store
from anabranch.model.errors import NotReady
from anabranch.model.hashrange import HashRange
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.metadata_keys import scalable_topic_key
from anabranch.model.names import TopicName
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.routing import MOD_N
from anabranch.model.segment import Seal, Segment, backing_topic
from anabranch.node.adapters.topic_layouts import StoredScalableRecords
from anabranch.runtime.clock import SystemClock
from tests.support.models.layout_histories import merge, split

TOPIC = TopicName.parse("topic://public/default/orders")


def split_topic(incarnation: int = 1) -> ScalableTopic:
    layout = Layout.initial(1, now_ms=0)
    plan = plan_split(layout, 0, now_ms=1, limits=NO_LIMITS)
    return ScalableTopic(TOPIC, incarnation, replaced(reserved(layout, plan), plan, {0: Seal(1)}))


def migrated_topic(partitions: int) -> ScalableTopic:
    origin = MigratedFrom("persistent://public/default/orders", partitions, 1)
    options = MigrationOptions()
    record = migration_planned(origin, "op", incarnation=1, epoch=0, routing=MOD_N, options=options)
    seals = {one: Seal(1) for one in record.layout.segments}
    return ScalableTopic(TOPIC, 1, committed(record, "op", seals, now_ms=2).layout)


class Records:
    def __init__(self, topic: ScalableTopic | None) -> None:
        self.topic = topic
        self.reads = 0
        self.is_behind = False  # what is written elsewhere is not here yet

    async def read(self, topic: TopicName, *, is_fresh: bool = False) -> ScalableTopic | None:
        self.reads += 1
        return self.topic if is_fresh or not self.is_behind else None

    def remembered(self, topic: TopicName) -> ScalableTopic | None:
        return self.topic

    async def exists(self, topic: TopicName) -> bool:
        return self.topic is not None


class Owners:
    def __init__(self) -> None:
        self.asked: list[tuple[TopicName, str]] = []
        self.answer: LastSequence | None = LastSequence(Last(5), is_final=True)

    async def __call__(self, names: Sequence[TopicName], producer: str) -> list[LastSequence | None]:
        self.asked += [(name, producer) for name in names]
        return [self.answer for _ in names]


async def test_final_answers_are_cached_per_producer_and_incarnation() -> None:
    owners, topic = Owners(), split_topic()
    ancestors = AncestorSequences(Records(topic), owners)

    async def last(of: ScalableTopic, producer: str) -> list[int]:
        return [one.last_sequence_id for one in await ancestors.ancestors(of, of.layout[1], producer)]

    assert await last(topic, "p") == [5]
    owners.answer = LastSequence(Last(9), is_final=True)
    assert await last(topic, "p") == [5]
    assert await last(topic, "q") == [9]
    assert await last(split_topic(incarnation=2), "p") == [9]  # the topic was deleted and created again
    assert [producer for _, producer in owners.asked] == ["p", "q", "p"]


async def test_unsealed_ancestors_are_asked_every_time() -> None:
    owners, topic = Owners(), split_topic()
    ancestors = AncestorSequences(Records(topic), owners)
    for last in (3, 4):
        owners.answer = LastSequence(Last(last), is_final=False)
        assert [one.last_sequence_id for one in await ancestors.ancestors(topic, topic.layout[2], "p")] == [last]


async def test_question_that_is_on_its_way_is_not_asked_again() -> None:
    topic, arrived = migrated_topic(3), asyncio.Event()

    class Slow(Owners):
        async def __call__(self, names: Sequence[TopicName], producer: str) -> list[LastSequence | None]:
            await arrived.wait()
            return await super().__call__(names, producer)

    owners = Slow()
    ancestors = AncestorSequences(Records(topic), owners)
    asking = [asyncio.ensure_future(ancestors.ancestors(topic, child, "p")) for child in topic.layout.active]
    await asyncio.sleep(0)
    arrived.set()
    assert [len(one) for one in await asyncio.gather(*asking)] == [3, 3, 3]
    assert len(owners.asked) == 3


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_all_that_wait_for_a_question_fail_with_it(is_cancelled: bool) -> None:
    topic, arrived = migrated_topic(2), asyncio.Event()

    class Failing(Owners):
        async def __call__(self, names: Sequence[TopicName], producer: str) -> list[LastSequence | None]:
            await arrived.wait()
            raise NotReady("away")

    ancestors = AncestorSequences(Records(topic), Failing())
    first, second = (asyncio.ensure_future(ancestors.ancestors(topic, child, "p")) for child in topic.layout.active)
    await asyncio.sleep(0)
    if is_cancelled:
        first.cancel()
    arrived.set()
    with pytest.raises(asyncio.CancelledError if is_cancelled else NotReady):
        await first
    with pytest.raises(NotReady):
        await second
    ancestors = AncestorSequences(Records(topic), Owners())
    assert len(await ancestors.ancestors(topic, topic.layout.active[0], "p")) == 2


async def test_producer_without_messages_in_any_partition_gets_none_of_them() -> None:
    topic, owners = migrated_topic(3), Owners()
    owners.answer = LastSequence(Last(), is_final=True)
    assert await AncestorSequences(Records(topic), owners).ancestors(topic, topic.layout.active[0], "p") == []
    owners.answer = LastSequence(Last(4), is_final=True)
    ancestors = AncestorSequences(Records(topic), owners)
    assert len(await ancestors.ancestors(topic, topic.layout.active[0], "p", since=4)) == 3
    assert await ancestors.ancestors(topic, topic.layout.active[0], "p", since=5) == []


async def test_deleted_ancestors_are_left_out() -> None:
    owners, topic = Owners(), split_topic()
    owners.answer = None
    assert await AncestorSequences(Records(topic), owners).ancestors(topic, topic.layout[1], "p") == []


async def test_segment_that_no_record_lists_is_not_found() -> None:
    topic = split_topic()
    name = backing_topic(TOPIC, topic.layout[1])
    assert (await AncestorSequences(Records(topic), Owners()).topic(name))[1] == topic.layout[1]
    with pytest.raises(TopicNotFound):
        await AncestorSequences(Records(None), Owners()).topic(name)
    with pytest.raises(TopicNotFound):
        await AncestorSequences(Records(topic), Owners()).topic(TopicName.parse(f"{name}7"))


async def test_record_is_read_fresh_before_a_segment_is_refused() -> None:
    topic = split_topic()
    records = Records(topic)
    name = backing_topic(TOPIC, topic.layout[1])
    await find_segment(records, name)
    assert records.reads == 1
    records.is_behind = True
    assert await find_segment(records, name) == (topic, topic.layout[1])


async def test_records_are_decoded_only_when_changed() -> None:
    async with open_store("memory:", SystemClock(), 8_000) as store:
        records, key = StoredScalableRecords(store, RecordCache()), scalable_topic_key(TOPIC)
        assert await records.read(TOPIC) is None
        stored = TopicRecord(Layout.initial(2, now_ms=0), incarnation=1)
        await store.put(key, encode_record(stored), expected=ANY)
        first = await records.read(TOPIC)
        assert first is not None
        again = await records.read(TOPIC, is_fresh=True)
        assert again is not None
        assert again.layout is first.layout
        await store.put(key, encode_record(replace(stored, incarnation=2)), expected=ANY)
        second = await records.read(TOPIC)
        assert second is not None
        assert (first.incarnation, second.incarnation) == (1, 2)
        await store.put(key, encode_record(replace(stored, is_deleting=True)), expected=ANY)
        assert await records.read(TOPIC) is None  # clients cannot attach any more
        assert await records.exists(TOPIC)


def test_keys_are_checked_only_with_range_routing() -> None:
    topic = split_topic()
    ancestors = AncestorSequences(Records(topic), Owners())
    proof = ancestors.proof(topic, topic.layout[1])
    assert proof is not None
    assert proof.span == topic.layout[1].hash_range
    assert ancestors.proof(replace(topic, layout=replace(topic.layout, routing=MOD_N)), topic.layout[1]) is None


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(-1, 6), st.booleans()), max_size=8),
    st.integers(0, 7),
    st.integers(0, 6),
)
def test_minimal_ancestors_cover_all_ancestors(
    rows: list[tuple[int, int, int, bool]], position: int, sequence_id: int
) -> None:
    """The minimal ancestors contain a message exactly if all ancestors do."""
    every = [
        (
            Segment(number, HashRange(min(a, b), max(a, b)), legacy_topic_name="persistent://t/n/x" if old else None),
            last,
        )
        for number, (a, b, last, old) in enumerate(rows)
    ]
    minimal = minimal_ancestors(every)
    assert [one for one in every if one[0].legacy_topic_name] == [one for one in minimal if one[0].legacy_topic_name]

    def has(ancestors: list[tuple[Segment, int]]) -> bool:
        by_range = [(one, last) for one, last in ancestors if one.legacy_topic_name is None]
        return any(last >= sequence_id and position in one.hash_range for one, last in by_range)

    assert has(minimal) == has(every)


async def test_many_splits_and_merges_leave_few_minimal_ancestors() -> None:
    layout = Layout.initial(1, now_ms=0)
    for _ in range(20):
        layout = split(layout, layout.active[0].segment_id)
        layout = merge(layout, *(one.segment_id for one in layout.active))
    topic, whole = ScalableTopic(TOPIC, 1, layout), layout.active[0]

    class Growing(Owners):
        async def __call__(self, names: Sequence[TopicName], producer: str) -> list[LastSequence | None]:
            self.asked += [(name, producer) for name in names]
            ids = [name.segment.segment_id for name in names if name.segment is not None]
            return [LastSequence(Last(10 * one), is_final=True) for one in ids]

    owners = Growing()
    ancestors = AncestorSequences(Records(topic), owners)
    for _ in range(2):
        minimal = await ancestors.ancestors(topic, whole, "p")
        assert [one.segment_id for one in minimal] == [whole.segment_id - 3, whole.segment_id - 2, whole.segment_id - 1]
    assert len(owners.asked) == len(layout.segments) - 1
