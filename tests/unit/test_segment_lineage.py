"""What ancestors have of a producer: asked once when it is final, never mixed up between lives of a topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.broker.errors import TopicNotFound
from anabranch.broker.scalable_records import ScalableTopic
from anabranch.broker.segment_lineage import LastSequence, Lineage
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.routing import MOD_N
from anabranch.model.segment import Seal, backing_topic

TOPIC = TopicName.parse("topic://public/default/orders")


def split_topic(incarnation: int = 1) -> ScalableTopic:
    layout = Layout.initial(1, now_ms=0)
    plan = plan_split(layout, 0, now_ms=1, limits=NO_LIMITS)
    return ScalableTopic(TOPIC, incarnation, replaced(reserved(layout, plan), plan, {0: Seal(1)}))


class Records:
    def __init__(self, topic: ScalableTopic | None) -> None:
        self.topic = topic

    async def read(self, topic: TopicName) -> ScalableTopic | None:
        return self.topic

    async def exists(self, topic: TopicName) -> bool:
        return self.topic is not None


class Owners:
    def __init__(self) -> None:
        self.asked: list[tuple[TopicName, str]] = []
        self.answer: LastSequence | None = LastSequence(5, is_final=True)

    async def __call__(self, name: TopicName, producer: str) -> LastSequence | None:
        self.asked.append((name, producer))
        return self.answer


async def test_final_answers_are_remembered_per_producer_and_life() -> None:
    owners, topic = Owners(), split_topic()
    lineage = Lineage(Records(topic), owners)

    async def last(of: ScalableTopic, producer: str) -> list[int]:
        return [one.last_sequence_id for one in await lineage.ancestors(of, of.layout[1], producer)]

    assert await last(topic, "p") == [5]
    owners.answer = LastSequence(9, is_final=True)
    assert await last(topic, "p") == [5]
    assert await last(topic, "q") == [9]
    assert await last(split_topic(incarnation=2), "p") == [9]  # the topic was deleted and created again
    assert [producer for _, producer in owners.asked] == ["p", "q", "p"]


async def test_what_may_still_grow_is_asked_every_time() -> None:
    owners, topic = Owners(), split_topic()
    lineage = Lineage(Records(topic), owners)
    for last in (3, 4):
        owners.answer = LastSequence(last, is_final=False)
        assert [one.last_sequence_id for one in await lineage.ancestors(topic, topic.layout[2], "p")] == [last]


async def test_ancestors_that_are_gone_are_left_out() -> None:
    owners, topic = Owners(), split_topic()
    owners.answer = None
    assert await Lineage(Records(topic), owners).ancestors(topic, topic.layout[1], "p") == []


async def test_segments_that_no_record_lists() -> None:
    topic = split_topic()
    name = backing_topic(TOPIC, topic.layout[1])
    assert (await Lineage(Records(topic), Owners()).topic(name))[1] == topic.layout[1]
    with pytest.raises(TopicNotFound):
        await Lineage(Records(None), Owners()).topic(name)
    with pytest.raises(TopicNotFound):
        await Lineage(Records(topic), Owners()).topic(TopicName.parse(f"{name}7"))


def test_keys_are_judged_where_ranges_mean_something() -> None:
    topic = split_topic()
    lineage = Lineage(Records(topic), Owners())
    proof = lineage.proof(topic, topic.layout[1])
    assert proof is not None
    assert proof.span == topic.layout[1].hash_range
    assert lineage.proof(replace(topic, layout=replace(topic.layout, routing=MOD_N)), topic.layout[1]) is None
