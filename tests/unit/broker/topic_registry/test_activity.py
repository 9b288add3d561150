"""Idle topics are not visited; visits are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic_registry.activity import ActivityTracker
from anabranch.broker.topic_registry.rate_meter import WINDOW_SECONDS
from anabranch.broker.topic_registry.rate_sampler import SAMPLE_SECONDS
from anabranch.broker.topic_registry.registry import REST_SECONDS
from anabranch.model.names import TopicName
from anabranch.model.subscription_type import SubscriptionType
from tests.support.in_memory.broker import BrokerWorld

IDLE = 50
SWEEP_SECONDS = 5.0


def test_each_view_gets_every_mark_once() -> None:
    activity = ActivityTracker[str]()
    one, other = activity.view(), activity.view()
    activity.mark("a")
    assert one.take() == {"a"}
    activity.mark_all(["b", "c", "b"])
    assert (one.take(), one.take()) == ({"b", "c"}, set())
    assert other.take() == {"a", "b", "c"}
    assert activity.view().take() == set()


class VisitCounter:
    """Counts samples and sweeps per topic."""

    def __init__(self, world: BrokerWorld, topics: list[Topic]) -> None:
        self.world = world
        self.looks: Counter[str] = Counter()
        self.sweeps: Counter[str] = Counter()
        self.busy = 0
        look = world.topics.sampler.sample

        def counted(topic: Any) -> Any:
            self.looks[topic.name.local] += 1
            return look(topic)

        world.topics.sampler.sample = counted  # type: ignore[method-assign]  # the same, counted
        for topic in topics:
            self.count_sweeps(topic)

    def count_sweeps(self, topic: Topic) -> None:
        sweep, name = topic.sweep, topic.name.local

        async def counted() -> None:
            self.sweeps[name] += 1
            await sweep()

        topic.sweep = counted  # type: ignore[method-assign]  # the same, counted

    async def pass_by(self, seconds: float) -> None:
        for _ in range(int(seconds / SWEEP_SECONDS)):
            self.world.clock.advance(SWEEP_SECONDS)
            await self.world.settle(turns=5)

    def forget(self) -> None:
        self.looks.clear()
        self.sweeps.clear()


async def crowd() -> tuple[BrokerWorld, Topic, list[Topic]]:
    """One topic among many, all with a consumer, so that none is unloaded."""
    world = await BrokerWorld(sweep_seconds=SWEEP_SECONDS).start()
    topics = [await world.topic(TopicName.parse(f"t{number}")) for number in range(IDLE + 1)]
    for topic in topics:
        await world.subscribe(topic, "s", SubscriptionType.SHARED)
        await world.publish(topic, 1)
    return world, topics[0], topics[1:]


async def test_only_active_topics_are_sampled_and_swept() -> None:
    world, busy, idle = await crowd()
    visits = VisitCounter(world, [busy, *idle])
    await visits.pass_by(WINDOW_SECONDS + 2 * SAMPLE_SECONDS)  # what was published is a minute ago by now
    visits.forget()
    for number in range(4):
        await world.publish(busy, 2 + number)
        await visits.pass_by(SAMPLE_SECONDS)
    assert visits.looks == {"t0": 4}
    assert visits.sweeps["t0"] >= 4
    await visits.pass_by(REST_SECONDS)
    assert max(visits.sweeps[topic.name.local] for topic in idle) <= 3, "the others are swept once a minute"


async def test_rates_after_a_long_idle_time_are_of_the_last_minute() -> None:
    world, topic, _ = await crowd()
    visits = VisitCounter(world, [])
    await visits.pass_by(1_000)
    visits.forget()
    await world.publish(topic, *range(2, 62))
    await visits.pass_by(SAMPLE_SECONDS)
    book = world.topics.sampler._samples[topic.name]
    assert visits.looks == {"t0": 1}
    assert (book.rates[0], book.rates[2]) == (1.0, 1.0), "sixty in and out, over a minute"
    await visits.pass_by(2 * WINDOW_SECONDS)
    assert world.topics.sampler._samples[topic.name].is_quiet
    assert topic not in world.topics.sampler.active()


async def test_acknowledgements_alone_make_a_topic_active() -> None:
    world, topic, _ = await crowd()
    visits = VisitCounter(world, [])
    positions = await world.publish(topic, 2, 3)
    await visits.pass_by(2 * WINDOW_SECONDS)
    visits.forget()
    subscription = topic.subscriptions["s"]
    subscription.ack(subscription.consumers[0], [(positions[0], (), 0)])
    await visits.pass_by(SAMPLE_SECONDS)
    assert visits.looks == {"t0": 1}
    assert world.topics.sampler._samples[topic.name].subscriptions["s"].acked_ms == world.clock.now_ms()


async def test_a_topic_that_is_left_by_everybody_is_unloaded_in_time() -> None:
    world, topic, _ = await crowd()
    await VisitCounter(world, []).pass_by(120)  # it rests
    subscription = topic.subscriptions["s"]
    topic.detach(subscription, subscription.consumers[0])
    await VisitCounter(world, []).pass_by(world.settings.idle_topic_seconds)
    assert world.topics.loaded(topic.name) is topic
    await VisitCounter(world, []).pass_by(2 * SWEEP_SECONDS)
    assert world.topics.loaded(topic.name) is None
