"""The SDK's consumers on scalable topics, against a real node in this process. Numbers: scenarios of the V5 client."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import anabranch
from anabranch import (
    Backoff,
    Batching,
    Checkpoint,
    CheckpointConsumer,
    Client,
    ConnectionPolicy,
    DeadLetter,
    Message,
    MessageId,
    ProcessingTimeout,
    Producer,
    QueueConsumer,
    StreamConsumer,
)
from anabranch.broker.admin.scalable_topics import ScalableAdmin
from anabranch.broker.topic.topic import Topic
from anabranch.client.async_resource import AsyncResource
from anabranch.client.consumer.checkpoint import FromStart, Kind, TopicCut
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.consumer.segment_traversal import CheckpointMismatch, PositionGone
from anabranch.client.errors import Closed
from anabranch.controller.segment_host import CloseReader, SegmentRef
from anabranch.model.names import TopicName
from anabranch.model.routing import key_hash
from anabranch.model.segment import backing_topic
from anabranch.node.node import Node
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings, service_of

RETRY_DELAYS = 60.0
QUIET = 0.3  # how long "nothing more comes" is watched
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
TOPIC = "topic://public/default/orders"
KEYS = [f"key-{n}" for n in range(12)]


class World:
    """A node, a client, and a producer that counts per key."""

    def __init__(self, node: Node, client: Client, admin: ScalableAdmin) -> None:
        self.node, self.client, self.admin = node, client, admin
        self.sent: dict[str, int] = defaultdict(int)
        self.all: list[str] = []
        self._producer: Producer | None = None

    async def create(self, segments: int = 1, topic: str = TOPIC, *, scales_itself: bool = True) -> None:
        """`scales_itself`: False for a test that splits by hand and has more stream consumers than segments: they would
        split the topic before it does."""
        await self.admin.create(topic, segments, {})
        if not scales_itself:
            await service_of(self.node).set_auto_scale_policy(TopicName.parse(topic), {"enabled": False})

    async def split(self, segment_id: int) -> None:
        await self.admin.split(TOPIC, segment_id, 2, None, None)

    async def merge(self, *segment_ids: int) -> None:
        await self.admin.merge(TOPIC, list(segment_ids), None)

    async def publish(self, count: int) -> None:
        """`count` messages, round the keys; the value says key and number."""
        if self._producer is None:
            self._producer = await self.client.producer(TOPIC, batching=Batching(max_messages=5))
        futures = []
        for _ in range(count):
            key = KEYS[len(self.all) % len(KEYS)]
            text = f"{key} {self.sent[key]}"
            self.sent[key] += 1
            self.all.append(text)
            futures.append(self._producer.send_nowait(text.encode(), key=key))
        await asyncio.wait_for(asyncio.gather(*futures), RETRY_DELAYS)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with Node(plain_settings(tmp_path)) as node:
        before = asyncio.all_tasks()
        async with anabranch.connect(node.service_url, connection=QUICK) as client:
            yield World(node, client, admin_of(node))
        ours = {task for task in asyncio.all_tasks() - before if task.get_name().startswith(("consumer", "watch"))}
        assert not ours, "the client left tasks behind"


async def received(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=RETRY_DELAYS)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
    return found


async def nothing(consumer: Consumer) -> bool:
    return await consumer.receive(timeout=QUIET) is None


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def assert_ordered(messages: Sequence[Message], expected: Sequence[str]) -> None:
    """Everything, exactly once, every key in its order."""
    found = texts(messages)
    assert Counter(found) == Counter(expected)
    by_key: dict[str, list[int]] = defaultdict(list)
    for text in found:
        key, number = text.split()
        by_key[key].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


# ------------------------------------------------------------------------------------------------------------- basics


async def test_acked_message_leaves_the_backlog(world: World) -> None:
    """Scenarios 1, 3, 5: a consumer may come first; names are canonical."""
    async with world.client.queue_consumer(TOPIC, subscription="s", name="me", timeout=RETRY_DELAYS) as consumer:
        assert (consumer.topic, consumer.subscription, consumer.name) == (TOPIC, "s", "me")
        await world.publish(1)
        (message,) = await received(consumer, 1)
        assert message.topic == TOPIC, "segments are not visible"
        assert message.redelivery_count == 0
        assert MessageId.from_bytes(message.id.to_bytes()) == message.id
        await consumer.ack(message)
    async with world.client.queue_consumer(TOPIC, subscription="s") as consumer:
        assert await nothing(consumer)


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
async def test_receive_on_idle_topic_returns_none_and_close_wakes_it(world: World, kind: str) -> None:
    """Scenarios 2, 10."""
    await world.create()
    consumer = await opened(world, kind)
    assert await consumer.receive(timeout=0.01) is None
    assert await consumer.receive_many(3, timeout=0.01) == []
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(Closed):
        await waiting
    await consumer.close()


async def opened(world: World, kind: str) -> Consumer:
    if kind == "queue":
        return await world.client.queue_consumer(TOPIC, subscription="s", start="earliest")
    if kind == "stream":
        return await world.client.stream_consumer(TOPIC, subscription="s", start="earliest")
    return await world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
async def test_cancelled_receive_loses_nothing(world: World, kind: str) -> None:
    await world.create(2)
    consumer = await opened(world, kind)
    for _ in range(20):
        waiting = asyncio.create_task(consumer.receive())
        await world.publish(1)
        waiting.cancel()
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        if isinstance(outcome, Message):
            world.all.remove(outcome.data.decode())
    assert Counter(texts(await received(consumer, len(world.all)))) == Counter(world.all)
    await consumer.close()


# ------------------------------------------------------------------------------------------------------------- streams


async def test_one_cumulative_ack_covers_four_segments(world: World) -> None:
    """Scenarios 39, 40, 41."""
    await world.create(4)
    async with world.client.stream_consumer(TOPIC, subscription="s", start="earliest") as consumer:
        await world.publish(60)
        messages = await received(consumer, 50)
        messages += await consumer.receive_many(100, timeout=RETRY_DELAYS)
        while len(messages) < 60:
            messages += await consumer.receive_many(100, timeout=RETRY_DELAYS)
        assert_ordered(messages, world.all)
        assert len({message.id.lane for message in messages}) == 4
        await consumer.ack_cumulative(messages[-1])
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        assert await nothing(consumer)


async def test_cumulative_ack_in_the_middle_redelivers_the_tail_only(world: World) -> None:
    """Scenarios 42, 52: closing acknowledges nothing."""
    await world.create(2)
    async with world.client.stream_consumer(TOPIC, subscription="s", start="earliest") as consumer:
        await world.publish(40)
        messages = await received(consumer, 40)
        await consumer.ack_cumulative(messages[17])
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        again = await received(consumer, 22)
        assert Counter(texts(again)) == Counter(texts(messages[18:]))
        assert await nothing(consumer)


async def test_a_position_can_be_acknowledged_by_another_process(world: World) -> None:
    await world.create(3)
    async with world.client.stream_consumer(TOPIC, subscription="s", start="earliest") as consumer:
        await world.publish(30)
        messages = await received(consumer, 30)
        kept = consumer.position(messages[19]).to_bytes()
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        await consumer.ack_cumulative(MessageId.from_bytes(kept))
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        assert Counter(texts(await received(consumer, 10))) == Counter(texts(messages[20:]))
        assert await nothing(consumer)


async def test_children_are_delivered_after_their_parents(world: World) -> None:
    """Scenarios 43, 46: over two generations and a merge."""
    await world.create()
    async with world.client.stream_consumer(TOPIC, subscription="s", start="earliest") as consumer:
        await world.publish(24)
        await world.split(0)
        await world.publish(24)
        first = await received(consumer, 24)
        assert {message.id.lane for message in first} == {0}
        await consumer.ack_cumulative(first[-1])
        second = await received(consumer, 24)
        await world.merge(1, 2)
        await world.publish(24)
        await consumer.ack_cumulative(second[-1])
        third = await received(consumer, 24)
        await consumer.ack_cumulative(third[-1])
        assert_ordered([*first, *second, *third], world.all)
    async with world.client.stream_consumer(TOPIC, subscription="s") as consumer:
        assert await nothing(consumer)


async def test_a_new_earliest_subscription_reads_the_whole_history(world: World) -> None:
    """Scenarios 44, 51."""
    await world.create()
    await world.publish(12)
    await world.split(0)
    await world.publish(12)
    await world.split(1)
    await world.publish(12)
    async with (
        world.client.stream_consumer(TOPIC, subscription="late", start="latest") as late,
        world.client.stream_consumer(TOPIC, subscription="early", start="earliest") as early,
    ):
        messages: list[Message] = []
        for _ in range(36):
            messages += await received(early, 1)
            await early.ack_cumulative(messages[-1])
        assert_ordered(messages, world.all)
        assert await nothing(late)
        await world.publish(12)
        assert Counter(texts(await received(late, 12))) == Counter(world.all[-12:])


async def test_two_consumers_have_disjoint_segments_until_one_closes(world: World) -> None:
    """Scenarios 45, 47, 54: the second is given half; when it leaves, the first has everything at once."""
    await world.create(4)
    async with world.client.stream_consumer(TOPIC, subscription="s", start="earliest", name="a") as first:
        await world.publish(48)
        seen = await received(first, 48)
        await first.ack_cumulative(seen[-1])
        second = await world.client.stream_consumer(TOPIC, subscription="s", name="b")
        await until(lambda: len(lanes(second)) == 2)
        assert lanes(first) | lanes(second) == {0, 1, 2, 3} and not lanes(first) & lanes(second)
        await world.publish(48)
        got: list[Message] = []
        for consumer in (first, second):
            while (message := await consumer.receive(timeout=QUIET)) is not None:
                got.append(message)
                await consumer.ack_cumulative(message)
        assert_ordered(got, world.all[48:])
        await second.close()
        await until(lambda: len(lanes(first)) == 4)
        await world.publish(24)
        assert_ordered(await received(first, 24), world.all[96:])


def lanes(consumer: Consumer) -> set[int]:
    return {lane for _, lane in consumer._segment_consumers}


async def test_segment_moves_after_its_messages_are_acknowledged(world: World) -> None:
    """Scenario 58's rule on whole segments: nothing is processed twice."""
    await world.create(2)
    async with world.client.stream_consumer(TOPIC, subscription="s", start="earliest", name="a") as first:
        await world.publish(24)
        held = await received(first, 24)
        async with world.client.stream_consumer(TOPIC, subscription="s", name="b") as second:
            assert await nothing(second)
            assert not lanes(second), "the first has not acknowledged what it was given"
            await first.ack_cumulative(held[-1])
            await until(lambda: len(lanes(second)) == 1)
            assert await nothing(second), "nothing comes twice"
            await world.publish(24)
            mine = [*await received(first, 1), *await received(second, 1)]
            assert {message.id.lane for message in mine} == {0, 1}


async def test_segment_moves_after_the_release_timeout(world: World) -> None:
    await world.create(2)
    async with world.client.stream_consumer(
        TOPIC, subscription="s", start="earliest", name="a", release_timeout=0.1
    ) as first:
        await world.publish(24)
        await received(first, 24)
        async with world.client.stream_consumer(TOPIC, subscription="s", name="b") as second:
            again = await received(second, 1)
            assert again[0].data.decode() in world.all


async def test_consumer_back_within_grace_period_keeps_its_segments(world: World) -> None:
    """Scenarios 48, 50: connections are cut; delivery continues, and other consumers are not affected."""
    await world.create(4)
    async with (
        world.client.stream_consumer(TOPIC, subscription="s", start="earliest", name="a") as first,
        anabranch.connect(world.node.service_url, connection=QUICK) as other,
    ):
        second = await other.stream_consumer(TOPIC, subscription="s", name="b")
        await until(lambda: len(lanes(second)) == 2 and len(lanes(first)) == 2)
        mine, theirs = lanes(first), lanes(second)
        (session,) = [one.controller_session for one in second._sessions.values()]
        assert session is not None and session._connection is not None
        cut = session._connection
        cut.abort("cut by the test")
        await world.publish(24)
        got = {message.id.lane for message in [*await received(first, 4), *await received(second, 4)]}
        assert got <= {0, 1, 2, 3}
        await until(lambda: session._connection is not None and session._connection is not cut)
        assert (lanes(first), lanes(second)) == (mine, theirs)


# -------------------------------------------------------------------------------------------------------------- queues


async def test_fenced_segment_is_detached_until_assigned_again(world: World) -> None:
    """The segment was reassigned before the consumer got the assignment: it neither fails nor retries."""
    await world.create(2)
    async with world.client.stream_consumer(TOPIC, subscription="s", name="a") as consumer:
        await world.publish(24)
        await consumer.ack_cumulative((await received(consumer, 24))[-1])
        leader = service_of(world.node).controllers.leading(TopicName.parse(TOPIC))
        assert leader is not None and leader.record is not None and world.node.services.segments is not None
        generation = leader.members["s"].group.assignment.generation
        first = leader.record.segments[0]
        ref = SegmentRef(backing_topic(leader.topic, first), leader.record.incarnation, 0)
        topic = world.node.services.topics.loaded(ref.name)
        assert isinstance(topic, Topic)
        await until(lambda: not topic.subscriptions["s"].cursor.has_backlog)  # the acks are there
        await leader.ask_host(CloseReader("test", ref, "s", "a", generation + 1))
        (session,) = consumer._sessions.values()
        await until(lambda: session.reconciler.held == (1,))
        assert not topic.subscriptions["s"].consumers
        await world.publish(24)
        keys = await keys_of(world, 1)
        other = [text for text in world.all[24:] if text.split()[0] in keys]
        got = await received(consumer, len(other))
        assert_ordered(got, other)
        await consumer.ack_cumulative(got[-1])
        async with world.client.stream_consumer(TOPIC, subscription="s", name="b"):
            pass  # came and went: what `a` has is of a new generation
        assert_ordered(await received(consumer, 24 - len(other)), sorted(set(world.all[24:]) - set(other)))


async def keys_of(world: World, segment_id: int) -> set[str]:
    record = await service_of(world.node).record(TopicName.parse(TOPIC))
    return {key for key in KEYS if record.layout.route(key_hash(key)).segment_id == segment_id}


async def test_a_queue_follows_splits_and_merges(world: World) -> None:
    """Scenarios 27, 28, 29, 66, 71: exact sets, late acks count, nothing of a child is missed."""
    await world.create()
    async with world.client.queue_consumer(TOPIC, subscription="s", start="latest") as consumer:
        await world.publish(12)
        late = await received(consumer, 12)
        got = list(late)
        changes: list[Callable[[], object]] = [
            lambda: world.split(0),
            lambda: world.split(1),
            lambda: world.merge(3, 4),
            lambda: world.merge(5, 2),
        ]
        for change in changes:
            await change()  # type: ignore[misc]  # a coroutine each
            await world.publish(12)
            for message in await received(consumer, 12):
                got.append(message)
                await consumer.ack(message)
        assert Counter(texts(got)) == Counter(world.all)
        for message in late:
            await consumer.ack(message)
    async with world.client.queue_consumer(TOPIC, subscription="s") as consumer:
        assert await nothing(consumer)


async def test_partial_acks_redeliver_exactly_the_rest(world: World) -> None:
    """Scenario 65."""
    await world.create(4)
    async with world.client.queue_consumer(TOPIC, subscription="s", start="earliest") as consumer:
        await world.publish(48)
        messages = await received(consumer, 48)
        for message in messages[::3]:
            await consumer.ack(message)
    async with world.client.queue_consumer(TOPIC, subscription="s") as consumer:
        rest = [text for n, text in enumerate(texts(messages)) if n % 3]
        assert Counter(texts(await received(consumer, len(rest)))) == Counter(rest)


async def test_many_producers_and_queue_consumers_lose_and_repeat_nothing(world: World) -> None:
    """Scenario 9."""
    await world.create(3)
    consumers = [
        await world.client.queue_consumer(TOPIC, subscription="s", start="earliest", prefetch=10) for _ in "abc"
    ]
    got: list[list[str]] = [[], [], []]

    async def work(n: int) -> None:
        async for message in consumers[n]:
            got[n].append(message.data.decode())
            await consumers[n].ack(message)

    workers = [asyncio.create_task(work(n)) for n in range(3)]
    await world.publish(300)
    await until(lambda: sum(map(len, got)) >= 300)
    for consumer in consumers:
        await consumer.close()
    await asyncio.gather(*workers)
    assert Counter(text for one in got for text in one) == Counter(world.all)
    assert all(got), "everyone has a share"


async def test_prefetch_bounds_buffered_messages_of_a_slow_queue(world: World) -> None:
    """Scenario 74: prefetch counts over all segments."""
    await world.create(4)
    await world.admin.create_subscription(TOPIC, "s", "QUEUE", "earliest")
    await world.publish(400)
    async with world.client.queue_consumer(TOPIC, subscription="s", prefetch=40) as consumer:
        await until(lambda: len(consumer._queue) >= 20)
        await asyncio.sleep(0.1)
        assert len(consumer._queue) <= 40 + 4 * 5, "the prefetch, and one batch per segment"
        assert Counter(texts(await received(consumer, 400))) == Counter(world.all)


async def test_nacked_messages_are_redelivered_by_backoff(world: World) -> None:
    """Scenario 64."""
    await world.create(2)
    backoff = Backoff(initial=0.02, maximum=0.1, multiplier=1.0, jitter=0)
    async with world.client.queue_consumer(TOPIC, subscription="s", start="earliest", nack_backoff=backoff) as consumer:
        await world.publish(6)
        for message in await received(consumer, 6):
            await consumer.nack(message)
        again = await received(consumer, 6)
        assert {message.redelivery_count for message in again} == {1}
        assert Counter(texts(again)) == Counter(world.all)
        await consumer.nack(again[0], delay=0)
        (third,) = await received(consumer, 1)
        assert (third.data, third.redelivery_count) == (again[0].data, 2)


async def test_processing_timeout_redelivers_unacknowledged_messages(world: World) -> None:
    """Scenario 67."""
    await world.create(2)
    async with world.client.queue_consumer(
        TOPIC, subscription="s", start="earliest", processing_timeout=ProcessingTimeout(timeout=0.3)
    ) as consumer:
        await world.publish(6)
        messages = await received(consumer, 6)
        for message in messages[:4]:
            await consumer.ack(message)
        again = await received(consumer, 2)
        assert Counter(texts(again)) == Counter(texts(messages[4:]))
        assert all(message.redelivery_count >= 1 for message in again)


@pytest.mark.parametrize("dead", [None, "topic://public/default/graveyard"])
async def test_message_redelivered_too_often_becomes_a_dead_letter(world: World, dead: str | None) -> None:
    """Scenario 70: key, properties and origin are kept; the application sees 0, 1 and 2, not the fourth."""
    await world.create(3)
    dead_letter_topic = dead or f"{TOPIC}-DLQ"
    policy = DeadLetter(max_redeliveries=2, topic=dead, initial_subscription="readers")
    async with world.client.producer(TOPIC, batching=None) as producer:
        for n in range(6):
            await producer.send(b"%d" % n, key=f"k{n}", properties={"n": str(n)}, event_time=1000 + n)
    async with world.client.queue_consumer(
        TOPIC, subscription="s", start="earliest", nack_delay=0, dead_letter=policy
    ) as consumer:
        seen: Counter[tuple[bytes, int]] = Counter()
        for _ in range(6 + 3 + 3):
            (message,) = await received(consumer, 1)
            seen[message.data, message.redelivery_count] += 1
            if int(message.data) % 2:
                await consumer.nack(message)
            else:
                await consumer.ack(message)
        assert {count for (data, count) in seen if int(data) % 2} == {0, 1, 2}
        async with world.client.queue_consumer(
            dead_letter_topic, subscription="readers", start="earliest"
        ) as dead_letter_consumer:
            copies = await received(dead_letter_consumer, 3)
            assert {copy.data for copy in copies} == {b"1", b"3", b"5"}
            for copy in copies:
                text = copy.data.decode()
                assert (copy.key, copy.event_time, copy.properties["n"]) == (f"k{text}", 1000 + int(text), text)
                assert copy.properties["REAL_TOPIC"] == TOPIC
                assert copy.properties["REAL_SUBSCRIPTION"] == "s"
                assert copy.properties["ORIGIN_MESSAGE_ID"]
        assert await nothing(consumer), "the originals are acknowledged"
    async with world.client.queue_consumer(TOPIC, subscription="s") as consumer:
        assert await nothing(consumer)


async def test_the_lowest_priority_number_is_served_first(world: World) -> None:
    """Scenarios 68, 69: priority and subscription properties reach every segment."""
    await world.create(2)
    first = await world.client.queue_consumer(TOPIC, subscription="s", start="earliest", priority=0)
    second = await world.client.queue_consumer(TOPIC, subscription="s", priority=1)
    await world.publish(24)
    assert Counter(texts(await received(first, 24))) == Counter(world.all)
    assert await nothing(second)


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_operator_rewinds_and_clears_with_a_connected_consumer(world: World, kind: str) -> None:
    """Scenarios 72, 73: what was published before anybody came is kept; a seek replays, also of sealed segments."""
    await world.create()
    await world.admin.create_subscription(TOPIC, "s", kind.upper(), "earliest")
    await world.publish(12)
    await world.split(0)
    await world.publish(12)
    consumer = await opened(world, kind)

    async def everything() -> list[Message]:
        got: list[Message] = []
        while len(got) < 24:
            got += await received(consumer, 1)
            if isinstance(consumer, QueueConsumer):
                await consumer.ack(got[-1])
            elif isinstance(consumer, StreamConsumer):
                await consumer.ack_cumulative(got[-1])
        return got

    assert Counter(texts(await everything())) == Counter(world.all)
    assert await nothing(consumer)
    await world.admin.seek(TOPIC, "s", 0)
    again = await everything()
    assert Counter(texts(again)) == Counter(world.all)
    if kind == "stream":
        assert_ordered(again, world.all)
    await world.admin.clear_backlog(TOPIC, "s")
    await world.publish(6)
    assert Counter(texts(await received(consumer, 6))) == Counter(world.all[24:])
    await consumer.close()


# --------------------------------------------------------------------------------------------------------- checkpoints


async def test_checkpoint_is_exact_across_splits_and_merges(world: World) -> None:
    """Scenarios 75, 76, 77, 78: stops after every few messages, also with more prefetched; a new reader goes on."""
    await world.create()
    await world.publish(30)
    changes: list[tuple[str, tuple[int, ...]]] = [("split", (0,)), ("split", (2,)), ("merge", (1, 3)), ("", ())]
    saved = Checkpoint.earliest().to_bytes()
    got: list[Message] = []
    for name, segments in changes:
        async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.from_bytes(saved)) as consumer:
            got += await received(consumer, 17)
            saved = consumer.checkpoint().to_bytes()
        if name == "split":
            await world.split(segments[0])
        elif name == "merge":
            await world.merge(*segments)
        await world.publish(18)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.from_bytes(saved)) as consumer:
        got += await received(consumer, len(world.all) - len(got))
        assert await nothing(consumer)
        saved = consumer.checkpoint().to_bytes()
    assert_ordered(got, world.all)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.from_bytes(saved)) as consumer:
        assert await nothing(consumer), "what is done is not read again"


async def test_reader_sees_keys_in_order_through_splits_and_merges(world: World) -> None:
    """Scenarios 46, 79: two readers see everything, each by itself."""
    await world.create()
    readers = [await world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) for _ in "ab"]
    await world.publish(24)
    await world.split(0)
    await world.publish(24)
    await world.split(1)
    await world.merge(4, 2)
    await world.publish(24)
    for reader in readers:
        assert_ordered(await received(reader, 72), world.all)
        await reader.close()


async def test_latest_starts_at_the_end_and_loses_nothing_of_later_children(world: World) -> None:
    """Scenarios 75, 83: the end is a position, also when nothing was received before the checkpoint."""
    await world.create(2)
    await world.publish(24)
    async with world.client.checkpoint_consumer(TOPIC) as consumer:
        saved = consumer.checkpoint()
        await world.split(0)
        await world.publish(24)
        assert_ordered(await received(consumer, 24), world.all[24:])
    async with world.client.checkpoint_consumer(TOPIC, start=saved) as consumer:
        assert_ordered(await received(consumer, 24), world.all[24:])
        assert await nothing(consumer)


async def test_checkpoint_consumer_starts_at_a_time(world: World) -> None:
    await world.create(2)
    await world.publish(12)
    at_ms = max([m.publish_time for m in await all_of(world)]) + 1
    await until(lambda: world.node.services.clock.now_ms() > at_ms)
    await world.split(1)
    await world.publish(12)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.at_time(at_ms)) as consumer:
        assert_ordered(await received(consumer, 12), world.all[12:])
        assert await nothing(consumer)


async def all_of(world: World) -> list[Message]:
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as consumer:
        return await received(consumer, len(world.all))


async def test_group_shares_segments_and_reads_children_of_finished_ones(world: World) -> None:
    """Scenarios 79, 80, 78 (grouped): disjoint; a second member is given its share; nothing is read twice."""
    await world.create(2)
    store: list[Checkpoint] = []

    def stored() -> Checkpoint | None:
        return Checkpoint.merge(store) if store else None

    def member(name: str) -> AsyncResource[CheckpointConsumer]:
        return world.client.checkpoint_consumer(
            TOPIC, start=Checkpoint.earliest(), group="g", name=name, restore=stored
        )

    async with member("a") as first:
        assert first.group == "g"
        await world.publish(24)
        got = await received(first, 24)
        async with member("b") as second:
            assert await nothing(second)
            store.append(first.checkpoint())
            await first.saved(store[-1])
            await until(lambda: len(lanes(second)) == 1 and len(lanes(first)) == 1)
            await world.publish(24)
            mine, theirs = await drained(first), await drained(second)
            assert mine and theirs
            got += mine + theirs
            assert_ordered(got, world.all)
            split = next(iter(lanes(second)))
            await world.split(split)
            await world.publish(24)
            got += await drained(second)
            store.append(second.checkpoint())
            await second.saved(store[-1])  # the parent is finished: its children open
            while len(got) < 72:
                for one in (first, second):
                    got += await drained(one)
                    store.append(one.checkpoint())
                    await one.saved(store[-1])
            assert_ordered(got, world.all)


async def test_group_continues_from_reported_progress_without_a_store(world: World) -> None:
    """Progress reported with `saved` is part of the assignment of the next member."""
    await world.create(2)
    await world.publish(24)

    def member(name: str) -> AsyncResource[CheckpointConsumer]:
        return world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest(), group="g", name=name)

    async with member("a") as first:
        got = await received(first, 17)
        await first.saved(first.checkpoint())
        await received(first, 3)  # and crashes before it has stored them
    async with member("b") as second:
        got += await received(second, 7)
        assert_ordered(got, world.all)
        assert await nothing(second)
    # An application that says itself where it begins has the last word.
    explicit = Checkpoint(Kind.RUN, (TopicCut(TOPIC, {0: FromStart(), 1: FromStart()}),))
    async with world.client.checkpoint_consumer(TOPIC, start=explicit, group="g", name="c") as third:
        assert_ordered(await received(third, 24), world.all)


async def drained(consumer: Consumer) -> list[Message]:
    found: list[Message] = []
    while (message := await consumer.receive(timeout=QUIET)) is not None:
        found.append(message)
    return found


async def test_checkpoint_of_a_deleted_topic_is_refused(world: World) -> None:
    await world.create()
    await world.publish(3)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as consumer:
        await received(consumer, 1)
        saved = consumer.checkpoint()
    other = Checkpoint.from_bytes(
        Checkpoint(
            saved.kind,
            tuple(TopicCut(cut.topic, cut.marks, cut.epoch, cut.incarnation + 1) for cut in saved.cuts),
        ).to_bytes()
    )
    with pytest.raises(CheckpointMismatch):
        await world.client.checkpoint_consumer(TOPIC, start=other)


async def test_segment_deleted_by_retention_is_skipped_or_reported(world: World) -> None:
    """Scenario 82."""
    await world.create()
    await world.publish(3)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as consumer:
        await received(consumer, 1)
        cut = consumer.checkpoint().cuts[0]
    gone = Checkpoint(Kind.RUN, (TopicCut(cut.topic, {77: cut.marks[0]}, 0, cut.incarnation),))
    async with world.client.checkpoint_consumer(TOPIC, start=gone) as consumer:
        assert_ordered(await received(consumer, 3), world.all)
    with pytest.raises(PositionGone):
        await world.client.checkpoint_consumer(TOPIC, start=gone, on_loss="fail")


async def test_readers_leave_no_subscription_behind(world: World) -> None:
    """Scenario 81."""
    await world.create(2)
    await world.publish(6)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()) as consumer:
        await received(consumer, 6)
    async with world.client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest(), group="g", name="a") as member:
        await received(member, 6)
    state = await world.admin.stats(TOPIC)
    assert set(state["subscriptions"]) <= {"g"}
    assert all(one["consumerCount"] == 0 for one in state["subscriptions"].values())


async def test_after_the_grace_period_the_survivor_has_all_segments(tmp_path: Path) -> None:
    """Scenario 49."""
    settings = replace(ScalableTopicSettings(), session_grace_seconds=0.3)
    async with (
        Node(plain_settings(tmp_path, scalable_topics=settings)) as node,
        anabranch.connect(node.service_url, connection=QUICK) as client,
    ):
        await admin_of(node).create(TOPIC, 4, {})
        survivor = await client.stream_consumer(TOPIC, subscription="s", start="earliest", name="a")
        async with anabranch.connect(node.service_url, connection=QUICK) as other:
            lost = await other.stream_consumer(TOPIC, subscription="s", name="b")
            await until(lambda: len(lanes(lost)) == 2 and len(lanes(survivor)) == 2)
            await lost._tasks.close()  # as if its process hung: no LEAVE, no session
            for one in lost._sessions.values():
                assert one.controller_session is not None
                await one.controller_session._hang_up()
            await until(lambda: len(lanes(survivor)) == 4)


# ------------------------------------------------------------------------------------------------------ several topics


async def test_one_consumer_on_several_topics(world: World) -> None:
    """Scenario 87's rule without a namespace: one cumulative ack covers all topics; a checkpoint has all of them."""
    regular = "persistent://public/default/plain"
    await world.create(2)
    topics = [TOPIC, regular]
    async with world.client.producer(regular) as producer:
        for n in range(6):
            await producer.send(f"plain {n}".encode(), key="plain")
    await world.publish(12)
    everything = Counter([*world.all, *(f"plain {n}" for n in range(6))])
    async with world.client.stream_consumer(topics, subscription="s", start="earliest") as stream:
        messages = await received(stream, 18)
        assert Counter(texts(messages)) == everything
        await stream.ack_cumulative(messages[-1])
    async with world.client.stream_consumer(topics, subscription="s") as stream:
        assert await nothing(stream)
    async with world.client.checkpoint_consumer(topics, start=Checkpoint.earliest()) as reader:
        first = await received(reader, 7)
        saved = reader.checkpoint().to_bytes()
    async with world.client.checkpoint_consumer(topics, start=Checkpoint.from_bytes(saved)) as reader:
        assert Counter(texts([*first, *await received(reader, 11)])) == everything
    async with world.client.queue_consumer(topics, subscription="q", start="earliest") as queue:
        for message in await received(queue, 18):
            await queue.ack(message)
