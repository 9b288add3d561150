"""What each policy of a scalable topic does on its segments: on each by itself, over the wire, and not on other topics.

`test_topic_policies.py` has message size, producers, retention, splits and restarts.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch import Client
from anabranch.admin.admin import Admin
from tests.support.processes.broker_process import BrokerProcess

KEYS = [f"k{number}" for number in range(16)]  # of both segments
BIG = b"x" * 4_000
WITHIN_S = 20.0
QUIET_S = 0.3
SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "%s"}]}'


@dataclass
class Order:
    number: int


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Sweeps ten times a second, and goes on to a new ledger after 20 kB."""
    arguments = ["--set", "broker.sweep_seconds=0.1", "--set", "topics.ledger_bytes_max=20000"]
    with BrokerProcess(tmp_path_factory.mktemp("segments") / "data", arguments=arguments) as process:
        yield process
        assert process.log_complaints() == []


class Segments:
    """A scalable topic of two segments with policies, and beside it one without."""

    def __init__(self, admin: Admin, client: Client) -> None:
        self.admin, self.client = admin, client
        self.name, self.other = (f"topic://public/default/sp-{uuid.uuid4().hex[:12]}" for _ in range(2))

    async def create(self) -> Segments:
        for name in (self.name, self.other):
            await self.admin.scalable_topics.create(name, segments=2)
        return self

    async def set(self, policy: str, value: Any, **options: Any) -> None:
        await self.admin.topic_policies.set(self.name, policy, value, **options)

    async def unset(self, policy: str, **options: Any) -> None:
        await self.admin.topic_policies.remove(self.name, policy, **options)

    async def subscribe(self, *names: str) -> None:
        for topic in (self.name, self.other):
            for name in names:
                await self.admin.scalable_topics.create_subscription(topic, name, kind="QUEUE", start="earliest")

    async def fill(self, topic: str, value: bytes = b"x", rounds: int = 1) -> None:
        """As many messages as keys, each an entry of its own."""
        async with self.client.producer(topic, batching=None, send_timeout=5) as producer:
            for _ in range(rounds):
                for key in KEYS:
                    await producer.send(value, key=key)

    async def backlogs(self, topic: str, subscription: str = "s") -> list[int]:
        """Of each active segment."""
        layout = (await self.admin.scalable_topics.metadata(topic))["segments"].values()
        found = []
        for segment in layout:
            low, high = segment["hashRange"]["start"], segment["hashRange"]["end"]
            descriptor = f"{low:04x}-{high:04x}-{segment['segmentId']}"
            found.append(await self.admin.segments.backlog(topic, descriptor, subscription))
        return found

    def queue(self, topic: str, subscription: str = "s", **options: Any) -> Any:
        return self.client.queue_consumer(topic, subscription=subscription, start="earliest", timeout=3, **options)


@pytest.fixture
async def segments(swift: BrokerProcess) -> AsyncIterator[Segments]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(anabranch.admin.connect(swift.http_url))
        client = await stack.enter_async_context(anabranch.connect(swift.service_url))
        yield await Segments(admin, client).create()


async def eventually(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await check():
                return
            await asyncio.sleep(0.02)


async def received(consumer: Any, count: int, *, ack: bool = True) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        message = await consumer.receive(timeout=WITHIN_S)
        assert message is not None, f"{len(found)} of {count}"
        found.append(message.value)
        if ack:
            await consumer.ack(message)
    return found


async def silence(consumer: Any) -> None:
    assert await consumer.receive(timeout=QUIET_S) is None


async def refused(resource: Any, text: str = "limit|maximum|support") -> None:
    with pytest.raises(anabranch.Error, match=text):
        async with resource:
            pass


async def test_ttl_skips_old_messages_of_each_segment(segments: Segments) -> None:
    await segments.subscribe("s")
    for topic in (segments.name, segments.other):
        await segments.fill(topic)
    before = await segments.backlogs(segments.other)
    assert sum(before) == len(KEYS) and min(before) > 0
    await segments.set("messageTTL", 1)

    async def is_expired() -> bool:
        return await segments.backlogs(segments.name) == [0, 0]

    await eventually(is_expired)
    assert await segments.backlogs(segments.other) == before


@pytest.mark.parametrize("kind", ["destination_storage", "message_age"])
async def test_quota_refuses_producers_of_each_segment_until_it_is_removed(segments: Segments, kind: str) -> None:
    await segments.subscribe("s")
    for topic in (segments.name, segments.other):
        await segments.fill(topic, BIG)
    value = {"limitSize": 10_000, "limitTime": 1, "policy": "producer_exception"}
    await segments.set("backlogQuotaMap", value, kind=kind)

    async def outcome(key: str) -> str:
        try:
            async with segments.client.producer(segments.name, send_timeout=1, timeout=2) as producer:
                await producer.send(b"x", key=key)
        except anabranch.Error as error:
            return error.code
        return "accepted"

    async def is_refused() -> bool:
        """At both segments: one producer for each key, because a segment refuses when a producer attaches."""
        return "accepted" not in await asyncio.gather(*map(outcome, KEYS))

    await eventually(is_refused)
    await segments.fill(segments.other)
    await segments.unset("backlogQuotaMap", kind=kind)
    await segments.fill(segments.name)


async def test_quota_evicts_the_backlog_of_each_segment(segments: Segments) -> None:
    await segments.subscribe("s")
    for topic in (segments.name, segments.other):
        await segments.fill(topic, BIG, rounds=2)
    before = await segments.backlogs(segments.name)
    value = {"limitSize": 10_000, "policy": "consumer_backlog_eviction"}
    await segments.set("backlogQuotaMap", value, kind="destination_storage")

    async def is_evicted() -> bool:
        return max(await segments.backlogs(segments.name)) * len(BIG) <= 10_000

    await eventually(is_evicted)
    assert await segments.backlogs(segments.other) == before


async def test_publish_rate_holds_for_each_segment(segments: Segments) -> None:
    await segments.set("publishRate", {"publishThrottlingRateInMsg": 10})
    async with segments.client.producer(segments.name, batching=None) as producer:
        began = time.monotonic()
        for _ in range(25):
            producer.send_nowait(b"x", key=KEYS[0])  # all to one segment: 10 at once, 15 at 10 a second
        await producer.flush()
        assert time.monotonic() - began >= 1.3
        await segments.unset("publishRate")
        await segments.fill(segments.name, rounds=5)


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate", "dispatchRate of s"])
async def test_dispatch_rate_holds_for_each_segment(segments: Segments, policy: str) -> None:
    await segments.subscribe("s", "free")
    async with segments.client.producer(segments.name, batching=None) as producer:
        for _ in range(25):
            await producer.send(b"x", key=KEYS[0])
    name, _, subscription = policy.partition(" of ")
    more = {"subscription": subscription} if subscription else {}
    await segments.set(name, {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 1}, **more)
    began = time.monotonic()
    async with segments.queue(segments.name) as consumer:
        await received(consumer, 25)
    assert time.monotonic() - began >= 1.3  # 10 at once, 15 at 10 a second
    if subscription:  # at one message a minute the other subscription would not get through
        await segments.set(name, {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 60}, **more)
        async with segments.queue(segments.name, "free") as consumer:
            await received(consumer, 25)


async def test_subscribe_rate_refuses_a_consumer_that_returns(segments: Segments, swift: BrokerProcess) -> None:
    await segments.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 600})

    async def attach(topic: str) -> None:
        """By a client of its own: a consumer is known by host, name and id."""
        async with (
            anabranch.connect(swift.service_url) as client,
            client.queue_consumer(topic, subscription="s", name="one", timeout=3),
        ):
            pass

    await attach(segments.name)
    with pytest.raises(anabranch.Error):
        await attach(segments.name)
    await attach(segments.other)
    await attach(segments.other)
    await segments.unset("subscribeRate")
    await attach(segments.name)


@pytest.mark.parametrize("policy", ["maxConsumers", "maxConsumersPerSubscription"])
async def test_most_consumers_of_each_segment(segments: Segments, policy: str) -> None:
    await segments.set(policy, 1)
    async with segments.queue(segments.name):
        await refused(segments.queue(segments.name))
        async with segments.queue(segments.other), segments.queue(segments.other):
            await segments.unset(policy)
            async with segments.queue(segments.name):
                pass


async def test_most_subscriptions_of_each_segment(segments: Segments) -> None:
    await segments.set("maxSubscriptionsPerTopic", 1)
    async with segments.queue(segments.name, "a"):
        await refused(segments.queue(segments.name, "b"), "maximum number of subscriptions")
        await refused(
            segments.client.stream_consumer(segments.name, subscription="c", timeout=5),
            "maximum number of subscriptions",
        )
        with pytest.raises(anabranch.Error, match="maximum number of subscriptions"):
            await segments.admin.scalable_topics.create_subscription(segments.name, "d")
        await segments.unset("maxSubscriptionsPerTopic")
        async with segments.queue(segments.name, "b"):
            pass


@pytest.mark.parametrize("policy", ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"])
async def test_most_unacknowledged_messages_of_each_segment(segments: Segments, policy: str) -> None:
    await segments.set(policy, 2)
    await segments.fill(segments.name)
    async with segments.queue(segments.name) as consumer:
        await received(consumer, 4, ack=False)  # two of each segment
        await silence(consumer)
        await segments.unset(policy)
        await received(consumer, len(KEYS) - 4, ack=False)


async def test_delays_of_each_segment(segments: Segments) -> None:
    async with (
        segments.queue(segments.name) as consumer,
        segments.client.producer(segments.name, batching=None, send_timeout=5) as producer,
    ):
        for key in KEYS:
            await producer.send(b"later", key=key, deliver_after=600)
        await silence(consumer)
        await segments.set("delayedDelivery", {"active": False, "tickTime": 1000})
        assert await received(consumer, len(KEYS)) == [b"later"] * len(KEYS)
        value = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5_000}
        await segments.set("delayedDelivery", value)
        for key in KEYS:
            with pytest.raises(anabranch.Error):
                await producer.send(b"too late", key=key, deliver_after=600)


async def test_subscription_types_of_each_segment(segments: Segments) -> None:
    await segments.set("subscriptionTypesEnabled", ["Exclusive"])
    await refused(segments.queue(segments.name, "q"))
    async with segments.client.stream_consumer(segments.name, subscription="t", timeout=5):
        pass
    async with segments.queue(segments.other, "q"):
        await segments.unset("subscriptionTypesEnabled")
        async with segments.queue(segments.name, "q"):
            pass


async def test_schema_is_required_where_the_topic_enforces_it(segments: Segments) -> None:
    for topic in (segments.name, segments.other):
        async with segments.client.producer(topic, schema=Order) as producer:
            await producer.send(Order(1), key="a")
    await segments.set("schemaValidationEnforced", True)

    async def without(topic: str) -> None:
        async with segments.client.producer(topic, send_timeout=5) as producer:
            await producer.send(b"{}", key="a")

    with pytest.raises(anabranch.Error, match=r"(?i)schema"):
        await without(segments.name)
    await without(segments.other)
    await segments.unset("schemaValidationEnforced")
    await without(segments.name)


async def test_compatibility_strategy_of_the_topic(segments: Segments) -> None:
    await segments.set("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    for topic, is_accepted in ((segments.name, True), (segments.other, False)):
        await segments.admin.schemas.upload(topic, {"type": "AVRO", "schema": SCHEMA % "int", "properties": {}})
        changed = {"type": "AVRO", "schema": SCHEMA % "string", "properties": {}}
        if is_accepted:
            await segments.admin.schemas.upload(topic, changed)
        else:
            with pytest.raises(anabranch.Error):
                await segments.admin.schemas.upload(topic, changed)


async def test_stored_only_policies_change_nothing_on_segments(segments: Segments) -> None:
    """Segments deduplicate always, live as long as their layout says, and take subscriptions from the controller."""
    await segments.set("deduplicationEnabled", False)
    rule = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1}
    await segments.set("inactiveTopicPolicies", {**rule, "deleteWhileInactive": True})
    await segments.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    await segments.set("subscriptionExpirationTime", 1)
    await segments.set("compactionThreshold", 1)
    for _ in range(2):
        async with segments.client.producer(segments.name, name="p", batching=None) as producer:
            for number, key in enumerate(KEYS):
                await producer.send(b"x", key=key, sequence_id=number)
    await asyncio.sleep(1.5)  # longer than the topic may be unused, with fifteen sweeps
    async with segments.queue(segments.name) as consumer:
        await received(consumer, len(KEYS))
        await silence(consumer)
    shown = await segments.admin.topic_policies.applied(segments.name)
    ignored = ("deduplicationEnabled", "inactiveTopicPolicies", "autoSubscriptionCreation", "compactionThreshold")
    assert [shown[name]["enforced"] for name in ignored] == [False] * len(ignored)
