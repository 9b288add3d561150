"""The SDK's consumers on scalable topics while brokers are killed: the topic's controller, and owners of segments."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anabranch
import anabranch.admin
from anabranch import Backoff, Checkpoint, CheckpointConsumer, Client, ConnectionPolicy, Message, QueueConsumer
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.consumer.stream_consumer import StreamConsumer
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses

RETRY_DELAYS = 40.0
TOPIC = "topic://public/default/orders"
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
KEYS = 10


class Watcher:
    """Takes what a consumer gives, acknowledges it, and notes every key's numbers as they came."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.news = asyncio.Event()

    @property
    def distinct(self) -> int:
        return sum(len(set(numbers)) for numbers in self.by_key.values())

    async def run(self) -> None:
        async for message in self.consumer:
            key, number = message.data.decode().split()
            self.by_key[key].append(int(number))
            await self._done_with(message)
            self.news.set()

    async def _done_with(self, message: Message) -> None:
        if isinstance(self.consumer, QueueConsumer):
            await self.consumer.ack(message)
        elif isinstance(self.consumer, StreamConsumer):
            await self.consumer.ack_cumulative(message)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(RETRY_DELAYS):
            while self.distinct < count:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def three_kinds(client: Client) -> AsyncIterator[dict[str, Watcher]]:
    watchers = {
        "stream": Watcher(await client.stream_consumer(TOPIC, subscription="stream", start="earliest", name="me")),
        "queue": Watcher(await client.queue_consumer(TOPIC, subscription="queue", start="earliest")),
        "checkpoint": Watcher(await client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())),
    }
    tasks = [asyncio.create_task(one.run()) for one in watchers.values()]
    try:
        yield watchers
    finally:
        for one in watchers.values():
            await one.consumer.close()
        await asyncio.gather(*tasks)


async def test_scenario_53_consumers_survive_killed_brokers_and_controller(tmp_path: Path) -> None:
    """Scenarios 35, 50, 53: every broker of two is killed in turn, with changes of structure before and after."""
    with ClusterProcesses(tmp_path, 2) as cluster:
        one, other = cluster.brokers.values()
        async with (
            anabranch.connect(cluster.service_url, connection=QUICK) as client,
            client.producer(TOPIC, name="shop", send_timeout=60) as producer,
            three_kinds(client) as watchers,
        ):
            sent = 0

            async def publish(count: int) -> None:
                nonlocal sent
                futures = []
                for _ in range(count):
                    key = f"key-{sent % KEYS}"
                    futures.append(producer.send_nowait(f"{key} {sent // KEYS}".encode(), key=key))
                    sent += 1
                await asyncio.wait_for(asyncio.gather(*futures), RETRY_DELAYS)

            async def all_see() -> None:
                for watcher in watchers.values():
                    await watcher.until(sent)

            await publish(50)
            await all_see()
            segment = 0
            for victim, witness in ((one, other), (other, one)):
                async with anabranch.admin.connect(witness.http_url) as admin:
                    await admin.scalable_topics.split(TOPIC, segment)
                    await publish(50)
                    await asyncio.to_thread(victim.kill9)
                    await publish(50)
                    await all_see()
                    await admin.scalable_topics.merge(TOPIC, [segment + 1, segment + 2])
                    await publish(50)
                    await all_see()
                    segment += 3
                await asyncio.to_thread(cluster.revive)
            await publish(50)
            await all_see()
            expected = {f"key-{n}": list(range(sent // KEYS)) for n in range(KEYS)}
            for kind, watcher in watchers.items():
                firsts = {key: list(dict.fromkeys(numbers)) for key, numbers in watcher.by_key.items()}
                if kind == "queue":  # everything, in any order
                    assert {key: sorted(numbers) for key, numbers in firsts.items()} == expected
                else:
                    assert firsts == expected, kind
            # A reader keeps its position itself: nothing is repeated when a broker dies.
            assert watchers["checkpoint"].by_key == expected
            reader = watchers["checkpoint"].consumer
            assert isinstance(reader, CheckpointConsumer)
            saved = reader.checkpoint().to_bytes()
            async with client.checkpoint_consumer(TOPIC, start=Checkpoint.from_bytes(saved)) as again:
                assert await again.receive(timeout=0.3) is None


def test_blocking_client_has_all_three_consumers(broker: BrokerProcess) -> None:
    topic = "topic://public/default/blocking-kinds"
    with anabranch.blocking.connect(broker.service_url) as client:
        with client.producer(topic) as producer:
            for n in range(6):
                producer.send(b"%d" % n, key="k")
        with client.stream_consumer(topic, subscription="s", start="earliest") as stream:
            messages = [stream.receive(timeout=RETRY_DELAYS) for _ in range(6)]
            assert [message.data for message in messages if message is not None] == [b"%d" % n for n in range(6)]
            assert messages[3] is not None and messages[5] is not None
            assert stream.position(messages[3]) == messages[3].id
            stream.ack_cumulative(messages[5])
        with client.checkpoint_consumer(topic, start=Checkpoint.earliest()) as reader:
            for _ in range(4):
                assert reader.receive(timeout=RETRY_DELAYS) is not None
            saved = reader.checkpoint()
        with client.checkpoint_consumer(topic, start=saved) as reader:
            rest = [reader.receive(timeout=RETRY_DELAYS) for _ in range(2)]
            assert [message.data for message in rest if message is not None] == [b"4", b"5"]
        with client.queue_consumer(topic, subscription="q", start="earliest", nack_delay=0) as queue:
            first = queue.receive(timeout=RETRY_DELAYS)
            assert first is not None
            queue.nack(first)
            again = [queue.receive(timeout=RETRY_DELAYS) for _ in range(6)]
            assert {message.data for message in again if message is not None} == {b"%d" % n for n in range(6)}
