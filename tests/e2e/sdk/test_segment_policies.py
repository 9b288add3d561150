"""Every policy of a scalable topic that is enforced, on the wire of its segments, also of those of a split. What is
counted together with other topics (subscriptions) or needs a sweep of days is tested elsewhere."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import anabranch
import anabranch.admin
from anabranch.admin.admin import Admin
from tests.support.processes.broker_process import BrokerProcess

WITHIN_S = 20.0
BIG = b"x" * 4_000
SWIFT = ("broker.sweep_seconds=0.1", "topics.ledger_bytes_max=20000")


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    words = [word for value in SWIFT for word in ("--set", value)]
    with BrokerProcess(tmp_path_factory.mktemp("segments") / "data", arguments=words) as process:
        yield process


@dataclass
class Scene:
    """A topic whose segments all come from a split after the policy was set; and clients of it."""

    admin: Admin
    client: anabranch.Client
    topic: str
    url: str

    async def set(self, name: str, value: Any, **more: Any) -> None:
        """And split: segment 0 gets it while it is loaded, its children 1 and 2 when they are created."""
        await self.admin.topic_policies.set(self.topic, name, value, **more)
        await self.admin.scalable_topics.split(self.topic, 0)

    async def subscribed(self, *names: str) -> None:
        for name in names:
            await self.admin.scalable_topics.create_subscription(self.topic, name, kind="QUEUE", start="earliest")

    async def sent(self, count: int, data: bytes = b"x") -> None:
        """All with one key, so to one segment."""
        async with self.client.producer(self.topic, batching=None) as producer:
            await asyncio.gather(*[producer.send(data, key="k") for _ in range(count)])

    def queue(self, subscription: str = "s", **more: Any) -> Any:
        return self.client.queue_consumer(self.topic, subscription=subscription, start="earliest", timeout=3, **more)

    async def backlog(self, name: str = "s") -> int:
        return int((await self.admin.scalable_topics.tick(self.topic))["subscriptions"][name]["msgBacklog"])


@pytest.fixture
async def scene(swift: BrokerProcess) -> AsyncIterator[Scene]:
    topic = f"topic://public/default/sp-{uuid.uuid4().hex[:12]}"
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(anabranch.admin.connect(swift.http_url))
        client = await stack.enter_async_context(anabranch.connect(swift.service_url, operation_timeout=3))
        await admin.scalable_topics.create(topic)
        await admin.scalable_topics.set_auto_scale_policy(topic, {"enabled": False})
        yield Scene(admin, client, topic, swift.service_url)


async def eventually(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await check():
                return
            await asyncio.sleep(0.02)


async def received(consumer: Any, count: int, *, ack: bool = True) -> None:
    for _ in range(count):
        message = await consumer.receive(timeout=WITHIN_S)
        assert message is not None
        if ack:
            await consumer.ack(message)


async def test_publish_rate(scene: Scene) -> None:
    await scene.set("publishRate", {"publishThrottlingRateInMsg": 20})
    began = time.monotonic()
    await scene.sent(50)
    assert time.monotonic() - began >= 1.4  # 20 at once, 30 at 20 a second: a floor that no load lowers


@pytest.mark.parametrize("name", ["dispatchRate", "subscriptionDispatchRate", "of-one-subscription"])
async def test_dispatch_rates(scene: Scene, name: str) -> None:
    await scene.subscribed("s")
    rate = {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 1}
    if name == "of-one-subscription":
        await scene.set("dispatchRate", rate, subscription="s")
    else:
        await scene.set(name, rate)
    await scene.sent(30)
    async with scene.queue() as consumer:
        began = time.monotonic()
        await received(consumer, 30)
        assert time.monotonic() - began >= 1.8  # 10 at once, 20 at 10 a second


async def test_subscribe_rate(scene: Scene) -> None:
    await scene.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 600})

    async def attach() -> None:
        """A new process, for the broker: it recognises a consumer by its address, name and number on its connection."""
        async with (
            anabranch.connect(scene.url, operation_timeout=3) as client,
            client.queue_consumer(scene.topic, subscription="s", name="one", timeout=3),
        ):
            pass

    await attach()
    with pytest.raises(anabranch.Error):
        await attach()
    await scene.admin.topic_policies.remove(scene.topic, "subscribeRate")
    await attach()


@pytest.mark.parametrize("name", ["maxConsumers", "maxConsumersPerSubscription"])
async def test_most_consumers(scene: Scene, name: str) -> None:
    await scene.set(name, 1)
    async with scene.queue() as first:
        with pytest.raises(anabranch.Error):
            async with scene.queue():
                pass
        await scene.admin.topic_policies.remove(scene.topic, name)
        async with scene.queue():
            await scene.sent(1)
        await received(first, 1)


@pytest.mark.parametrize("name", ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"])
async def test_most_unacknowledged_messages(scene: Scene, name: str) -> None:
    await scene.subscribed("s")
    await scene.set(name, 3)
    await scene.sent(10)
    async with scene.queue() as consumer:
        await received(consumer, 3, ack=False)
        assert await consumer.receive(timeout=0.5) is None
        await scene.admin.topic_policies.remove(scene.topic, name)
        await received(consumer, 7, ack=False)


async def test_backlog_quota_refuses_until_it_is_removed(scene: Scene) -> None:
    await scene.subscribed("s")
    await scene.set("backlogQuotaMap", {"limitSize": 10_000, "policy": "producer_exception"})
    await scene.sent(5, BIG)

    async def is_refused() -> bool:
        try:
            async with scene.client.producer(scene.topic, batching=None, send_timeout=1, timeout=1) as producer:
                await producer.send(BIG, key="k")
        except anabranch.Error as error:
            assert "quota" in str(error)
            return True
        return False

    await eventually(is_refused)
    await scene.admin.topic_policies.remove(scene.topic, "backlogQuotaMap")
    await scene.sent(1, BIG)


async def test_ttl_and_age_quota_skip_old_messages(scene: Scene) -> None:
    await scene.subscribed("s")
    await scene.set("messageTTL", 1)
    await scene.sent(3)
    await eventually(lambda: emptied(scene))
    await scene.admin.topic_policies.remove(scene.topic, "messageTTL")
    await scene.sent(3)
    assert await scene.backlog() == 3
    quota = {"limitTime": 1, "policy": "consumer_backlog_eviction"}
    await scene.admin.topic_policies.set(scene.topic, "backlogQuotaMap", quota, kind="message_age")
    await eventually(lambda: emptied(scene))


async def emptied(scene: Scene) -> bool:
    return await scene.backlog() == 0


async def test_delayed_delivery(scene: Scene) -> None:
    await scene.set("delayedDelivery", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 900_000})
    async with scene.queue() as consumer, scene.client.producer(scene.topic, batching=None) as producer:
        await producer.send(b"later", key="k", deliver_after=600)
        assert await consumer.receive(timeout=0.5) is None
        with pytest.raises(anabranch.Error):
            await producer.send(b"too late", key="k", deliver_after=1_000)
        off = {"active": False, "tickTime": 1000}
        await scene.admin.topic_policies.set(scene.topic, "delayedDelivery", off)
        await received(consumer, 1)


async def test_subscription_types(scene: Scene) -> None:
    await scene.set("subscriptionTypesEnabled", ["Exclusive"])
    with pytest.raises(anabranch.Error):
        async with scene.queue():
            pass
    async with scene.client.stream_consumer(scene.topic, subscription="stream", start="earliest", timeout=3):
        pass
    await scene.admin.topic_policies.remove(scene.topic, "subscriptionTypesEnabled")
    async with scene.queue():
        pass


async def test_schema_validation(scene: Scene) -> None:
    @dataclass
    class Order:
        number: int

    async with scene.client.producer(scene.topic, schema=Order) as producer:
        await producer.send(Order(1), key="k")
    await scene.set("schemaValidationEnforced", True)
    with pytest.raises(anabranch.Error):
        async with scene.client.producer(scene.topic, send_timeout=3) as producer:
            await producer.send(b"bytes", key="k")
    async with scene.client.producer(scene.topic, schema=Order) as producer:
        await producer.send(Order(2), key="k")
    await scene.admin.topic_policies.remove(scene.topic, "schemaValidationEnforced")
    await scene.sent(1)


async def test_subscriptions_are_not_created_where_the_topic_forbids_it(scene: Scene) -> None:
    await scene.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    with pytest.raises(anabranch.Error, match="subscription"):
        async with scene.queue():
            pass
    stream = partial(scene.client.stream_consumer, scene.topic, start="earliest", timeout=3)
    with pytest.raises(anabranch.Error, match="no subscription stream"):
        async with stream(subscription="stream"):
            pass
    async with scene.client.checkpoint_consumer(scene.topic):
        pass
    await scene.subscribed("s")
    await scene.sent(3)
    async with scene.queue() as consumer:
        await received(consumer, 3)
    await scene.admin.topic_policies.remove(scene.topic, "autoSubscriptionCreation")
    async with stream(subscription="stream") as consumer:
        assert await consumer.receive(timeout=WITHIN_S) is not None
