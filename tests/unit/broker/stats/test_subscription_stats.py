"""Stats of one subscription: every kind has the same keys, and the counters of its consumers."""

from __future__ import annotations

from anabranch.broker.stats.subscription_stats import StatsOptions, consumer_stats, rate_since, subscription_stats, when
from anabranch.broker.topic.non_persistent_topic import NonPersistentTopic
from anabranch.broker.topic_registry.rate_sampler import SubscriptionSample
from anabranch.model.names import TopicName
from anabranch.model.subscription_type import SubscriptionType
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.broker_fakes import RecordingPeer, make_consumer

OPTIONAL = {"activeConsumerName", "keySharedMode", "msgDropRate"}


async def test_non_persistent_subscription_has_the_same_keys() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    kept, _ = await world.subscribe(topic, "s", SubscriptionType.SHARED)
    name = TopicName.parse("non-persistent://t/n/m")
    memory = NonPersistentTopic(
        name, settings=world.settings, clock=world.clock, mark_active=world.topics.activity.mark
    )
    passing, _ = await memory.subscribe(world.request("s", SubscriptionType.SHARED), RecordingPeer())
    book, now_ms = SubscriptionSample(), world.clock.now_ms()
    stored = await subscription_stats(topic, kept, book, now_ms, StatsOptions())
    shown = await subscription_stats(memory, passing, book, now_ms, StatsOptions())
    assert stored.keys() - OPTIONAL == shown.keys() - OPTIONAL
    assert "msgDropRate" in shown and "msgDropRate" not in stored
    assert stored["subscriptionProperties"] is not shown["subscriptionProperties"]


async def test_options_select_the_fields_of_stats() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, _ = await world.subscribe(topic, "s", SubscriptionType.KEY_SHARED)
    await world.publish(topic, 1, 2)
    book, now_ms = SubscriptionSample(), world.clock.now_ms()
    full = await subscription_stats(topic, subscription, book, now_ms, StatsOptions(earliest_time=True))
    brief = await subscription_stats(
        topic, subscription, book, now_ms, StatsOptions(subscription_backlog_size=False, exclude_consumers=True)
    )
    assert (len(full["consumers"]), brief["consumers"]) == (1, [])
    assert full["unackedMessages"] == brief["unackedMessages"] == 2
    assert full["backlogSize"] > 0 and brief["backlogSize"] == -1
    assert brief["earliestMsgPublishTimeInBacklog"] == 0
    assert full["keySharedMode"] == "AUTO_SPLIT" and "activeConsumerName" not in full


def test_rates_of_a_consumer_count_from_its_connection() -> None:
    consumer = make_consumer(SubscriptionType.SHARED)
    consumer.messages_out, consumer.connected_ms = 30, 1_000
    assert consumer_stats(consumer, 11_000)["msgRateOut"] == 3.0
    assert rate_since(30, 1_000, 1_010) == 30.0
    assert when(1_000) == "1970-01-01T00:00:01.000Z"
