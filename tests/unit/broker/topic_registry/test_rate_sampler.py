"""Rates and times of last use come from periodic samples; the clock is manual."""

from __future__ import annotations

from anabranch.broker.stats.subscription_stats import StatsOptions
from anabranch.broker.stats.topic_stats import topic_stats
from anabranch.broker.topic_registry.rate_sampler import SAMPLE_SECONDS
from anabranch.model.names import TopicName
from anabranch.model.subscription_type import SubscriptionType
from tests.support.in_memory.broker import BrokerWorld


async def test_rates_are_of_the_last_minute_without_readers() -> None:
    world = await BrokerWorld(idle_topic_seconds=1e6).start()
    topic = await world.topic()
    for _ in range(6):
        await world.publish(topic, *range(20))
        world.clock.advance(SAMPLE_SECONDS)
        await world.settle(turns=5)
    assert 1.5 < world.topics.sampler.sample(topic).rates[0] < 2.5
    for _ in range(7):  # no traffic and no reader
        world.clock.advance(SAMPLE_SECONDS)
        await world.settle(turns=5)
    assert world.topics.sampler.sample(topic).rates[0] == 0.0


async def test_times_of_last_use() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, "s", SubscriptionType.SHARED)
    book = world.topics.sampler.sample(topic)
    assert (book.published_ms, book.subscriptions["s"].out_ms) == (0, 0)
    world.clock.advance(5)
    positions = await world.publish(topic, 1, 2)
    book = world.topics.sampler.sample(topic)
    delivered_ms = world.clock.now_ms()
    assert book.published_ms == book.subscriptions["s"].out_ms == delivered_ms
    world.clock.advance(5)
    subscription.ack(consumer, [(positions[1], (), 0)])
    one = world.topics.sampler.sample(topic).subscriptions["s"]
    assert one.acked_ms == world.clock.now_ms() and one.mark_ms == 0 and one.out_ms == delivered_ms
    world.clock.advance(5)
    subscription.ack(consumer, [(positions[0], (), 0)])
    assert world.topics.sampler.sample(topic).subscriptions["s"].mark_ms == world.clock.now_ms()


async def test_samples_of_unloaded_topics_are_dropped() -> None:
    world = await BrokerWorld().start()
    topic, other = await world.topic(), await world.topic(TopicName.parse("other"))
    await world.subscribe(topic, "s")
    world.topics.sampler.sample(topic)
    await topic.unsubscribe("s", force=True)
    assert world.topics.sampler.sample(topic).subscriptions == {}
    await world.topics.close(other.name)
    world.clock.advance(SAMPLE_SECONDS)
    await world.settle(turns=5)
    assert set(world.topics.sampler._samples) == {topic.name}


async def test_totals_do_not_shrink_when_consumers_leave() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, "s", SubscriptionType.SHARED)
    await world.publish(topic, 1, 2, 3)
    topic.detach(subscription, consumer)
    book = world.topics.sampler.sample(topic)
    stats = await topic_stats(topic, book, world.clock.now_ms(), "b", StatsOptions(earliest_time=True))
    one = stats["subscriptions"]["s"]
    assert one["msgOutCounter"] == stats["msgOutCounter"] == 3 and one["type"] == "Shared"
    assert "activeConsumerName" not in one and stats["oldestBacklogMessageAgeSeconds"] != 0
