"""Nacks, processing timeouts and dead letters of single messages of a batch, on regular and scalable topics.

A nack concerns one message. The other messages of its entry stay with the consumer that holds them, and redelivery
counts are counts of messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import anabranch
from anabranch import (
    Backoff,
    Batching,
    Client,
    ConnectionPolicy,
    DeadLetter,
    Message,
    MessageBatch,
    ProcessingTimeout,
    QueueConsumer,
)
from anabranch.broker.topic.topic import Topic
from anabranch.client.consumer.consumer import Consumer
from anabranch.model.names import TopicName
from anabranch.node.node import Node
from anabranch.protocol.commands import BaseCommand, frame_with_payload
from anabranch.protocol.entry import build_batch
from tests.support.in_memory.fake_broker import FakeBroker, ReceivedCommand
from tests.support.processes.in_process_cluster import until
from tests.support.processes.scalable_nodes import admin_of, plain_settings

PATIENCE = 60.0
QUIET = 0.3  # how long "nothing more comes" is watched
ONE_BATCH = Batching(max_delay=60)
REGULAR, SCALABLE = "persistent://public/default/jobs", "topic://public/default/jobs"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(plain_settings(tmp_path)) as node:
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    quick = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.2))
    async with anabranch.connect(node.service_url, connection=quick) as client:
        yield client


@pytest.fixture(params=[REGULAR, SCALABLE], ids=["regular", "scalable"])
async def topic(request: pytest.FixtureRequest, node: Node) -> str:
    name: str = request.param
    if name == SCALABLE:
        await admin_of(node).create(name, 2, {})
    return name


async def publish(client: Client, topic: str, count: int, batching: Batching | None = ONE_BATCH) -> list[str]:
    """Messages "0", "1", …; by default one batch per segment."""
    async with client.producer(topic, batching=batching) as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number, key=f"k{number}")
        await producer.flush(timeout=PATIENCE)
    return [str(number) for number in range(count)]


async def received(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=PATIENCE)
        assert message is not None, f"only {len(found)} of {count} messages"
        found.append(message)
    return found


async def taken(workers: Sequence[QueueConsumer], count: int) -> list[tuple[Message, QueueConsumer]]:
    """Messages with the workers that got them, in no particular order."""
    found: list[tuple[Message, QueueConsumer]] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            for worker in workers:
                while (message := await worker.receive(timeout=0.02)) is not None:
                    found.append((message, worker))
    return found


async def nothing(consumer: QueueConsumer) -> bool:
    return await consumer.receive(timeout=QUIET) is None


def dead_letters_of(topic: str) -> str:
    return f"{topic}-dead"


def text(message: Message) -> str:
    return message.data.decode()


async def backlog(client: Client, topic: str) -> list[str]:
    """What a new consumer of the subscription gets."""
    async with client.queue_consumer(topic, subscription="s") as consumer:
        found = []
        while (message := await consumer.receive(timeout=QUIET)) is not None:
            found.append(text(message))
        return found


async def test_nack_leaves_the_rest_of_the_batch_with_its_holders(client: Client, topic: str) -> None:
    """Four workers, default batching, every twentieth message is nacked once."""
    done: Counter[str] = Counter()
    counts: dict[str, list[int]] = defaultdict(list)

    async def work(worker: QueueConsumer) -> None:
        while len(done) < 2_000:  # a worker that stopped earlier would keep what comes back
            messages = await worker.receive_many(50, timeout=0.2)
            for message in messages:
                counts[text(message)].append(message.redelivery_count)
            failed = [one for one in messages if int(one.data) % 20 == 0 and one.redelivery_count == 0]
            for message in failed:
                await worker.nack(message)
            await asyncio.sleep(0.01)  # its work on the others: they are held meanwhile
            for message in messages:
                if message not in failed:
                    done[text(message)] += 1
                    await worker.ack(message)

    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                client.queue_consumer(topic, subscription="s", start="earliest", nack_delay=0.001, prefetch=200)
            )
            for _ in range(4)
        ]
        sent = await publish(client, topic, 2_000, Batching())
        async with asyncio.timeout(120):
            await asyncio.gather(*map(work, workers))
        rest = await asyncio.gather(*(worker.receive_many(1, timeout=1.0) for worker in workers))
        assert not any(rest), "nothing is delivered twice"
    assert done == Counter(sent)
    assert dict(counts) == {one: [0, 1] if int(one) % 20 == 0 else [0] for one in sent}
    assert await backlog(client, topic) == []


async def test_nacked_message_goes_to_another_worker_and_nothing_else_does(client: Client, topic: str) -> None:
    async with (
        client.queue_consumer(topic, subscription="s", start="earliest") as one,
        client.queue_consumer(topic, subscription="s", start="earliest") as two,
    ):
        await publish(client, topic, 20)
        held = await taken((one, two), 20)
        takers: set[QueueConsumer] = set()
        for attempt in range(1, 5):
            message, worker = next(pair for pair in held if text(pair[0]) == "7")
            await worker.nack(message, delay=0)
            ((again, taker),) = await taken((one, two), 1)
            assert (text(again), again.redelivery_count) == ("7", attempt)
            held = [pair for pair in held if text(pair[0]) != "7"] + [(again, taker)]
            takers.add(taker)
        assert takers == {one, two}, "workers take turns"
        assert await nothing(one) and await nothing(two)
        for message, worker in held:
            await worker.ack(message)
    assert await backlog(client, topic) == []


async def test_each_failing_message_of_a_batch_gets_the_promised_attempts(client: Client, topic: str) -> None:
    """One worker, `max_redeliveries=3`: four attempts each, and healthy messages of the batch are no dead letters."""
    dead_topic = dead_letters_of(topic)
    policy = DeadLetter(max_redeliveries=3, topic=dead_topic, initial_subscription="readers")
    tries: dict[str, list[int]] = defaultdict(list)
    failing = {str(number) for number in range(0, 40, 2)}
    async with client.queue_consumer(
        topic, subscription="s", start="earliest", nack_delay=0, dead_letter=policy
    ) as worker:
        await publish(client, topic, 40)
        while sum(map(len, tries.values())) < 20 * 4 + 20:
            (message,) = await received(worker, 1)
            tries[text(message)].append(message.redelivery_count)
            await (worker.nack(message) if text(message) in failing else worker.ack(message))
        async with client.queue_consumer(dead_topic, subscription="readers") as dead:
            assert Counter(map(text, await received(dead, 20))) == Counter(failing)
            assert await nothing(dead)
        assert await nothing(worker)
    assert dict(tries) == {str(one): [0, 1, 2, 3] if str(one) in failing else [0] for one in range(40)}
    assert await backlog(client, topic) == []


async def test_processing_timeout_brings_back_only_what_timed_out(client: Client, topic: str) -> None:
    limit = ProcessingTimeout(timeout=0.3)
    async with (
        client.queue_consumer(topic, subscription="s", start="earliest", processing_timeout=limit, prefetch=100) as one,
        client.queue_consumer(topic, subscription="s", start="earliest", processing_timeout=limit, prefetch=100) as two,
    ):
        await publish(client, topic, 10)
        held = await taken((one, two), 10)
        for message, worker in held:
            if int(message.data) not in (3, 6):
                await worker.nack(message, delay=30)  # not due, and its timeout is over
        again = await taken((one, two), 2)
        assert sorted((text(message), message.redelivery_count) for message, _ in again) == [("3", 1), ("6", 1)]
        for message, worker in again:
            await worker.ack(message)
        assert await nothing(one) and await nothing(two)


async def test_message_that_was_never_nacked_is_no_dead_letter(client: Client, topic: str) -> None:
    """Workers that leave with unacknowledged messages do not count."""
    policy = DeadLetter(max_redeliveries=1, topic=dead_letters_of(topic))
    worker = await client.queue_consumer(topic, subscription="s", start="earliest", dead_letter=policy)
    sent = await publish(client, topic, 30, Batching(max_messages=10))
    for _ in range(4):
        await received(worker, 30)
        following = await client.queue_consumer(topic, subscription="s", dead_letter=policy)
        await worker.close()
        worker = following
    found = await received(worker, 30)
    assert Counter(map(text, found)) == Counter(sent)
    assert {message.redelivery_count for message in found} == {0}
    await worker.close()


@pytest.mark.parametrize("delay", [0.0, 30.0], ids=["sent", "pending at close"])
async def test_count_of_a_nack_survives_the_restart_of_the_only_worker(
    client: Client, topic: str, delay: float
) -> None:
    for attempt in range(4):
        async with client.queue_consumer(topic, subscription="s", start="earliest") as worker:
            if attempt == 0:
                await publish(client, topic, 10)
            messages = await received(worker, 10)
            counts = {text(message): message.redelivery_count for message in messages}
            assert counts == {str(one): attempt if one in (4, 7) else 0 for one in range(10)}
            for message in messages:
                if text(message) in "47":
                    await worker.nack(message, delay=delay)
            if not delay:
                again = await received(worker, 2)  # the broker has the nacks
                assert {message.redelivery_count for message in again} == {attempt + 1}


@pytest.mark.parametrize("prefetch", [1, 7, 1_000])
async def test_consumer_whose_messages_are_all_nacked_goes_on(client: Client, topic: str, prefetch: int) -> None:
    """Nacked messages use up no prefetch, neither while they wait nor when they come again."""
    async with client.queue_consumer(topic, subscription="s", start="earliest", prefetch=prefetch) as worker:
        sent = await publish(client, topic, 60, Batching(max_messages=20))
        for attempt in range(3):
            messages = await received(worker, 60)
            assert Counter(map(text, messages)) == Counter(sent)
            assert {message.redelivery_count for message in messages} == {attempt}
            for message in messages:
                await worker.nack(message, delay=0.01)
        for message in await received(worker, 60):
            await worker.ack(message)
    assert await backlog(client, topic) == []


async def test_message_of_a_received_batch_is_nacked_alone(client: Client, topic: str) -> None:
    async with (
        client.queue_consumer(topic, subscription="s", start="earliest") as one,
        client.queue_consumer(topic, subscription="s", start="earliest") as two,
    ):
        await publish(client, topic, 12)
        batches: list[tuple[MessageBatch, QueueConsumer]] = []
        while sum(len(batch) for batch, _ in batches) < 12:
            batches += [(await worker.receive_batch(timeout=0.05), worker) for worker in (one, two)]
        for batch, worker in batches:
            for message in batch:
                if text(message) in ("3", "8"):
                    await worker.nack(message, delay=0)
        again = await taken((one, two), 2)
        assert sorted((text(message), message.redelivery_count) for message, _ in again) == [("3", 1), ("8", 1)]
        for batch, worker in batches:
            await worker.ack(batch)  # also the nacked ones: a late ack counts
        assert await nothing(one) and await nothing(two)
    assert await backlog(client, topic) == []


async def test_nacks_pending_through_a_split_and_a_merge_come_back(client: Client, node: Node) -> None:
    admin = admin_of(node)
    await admin.create(SCALABLE, 1, {})
    async with (
        client.queue_consumer(SCALABLE, subscription="s", start="earliest") as one,
        client.queue_consumer(SCALABLE, subscription="s", start="earliest") as two,
    ):
        await publish(client, SCALABLE, 20)
        held = await taken((one, two), 20)
        for message, worker in held:
            if int(message.data) % 5 == 0:
                await worker.nack(message, delay=0.5)
        await admin.split(SCALABLE, 0, 2, None, None)
        await admin.merge(SCALABLE, [1, 2], None)
        again = await taken((one, two), 4)
        assert {(text(message), message.redelivery_count) for message, _ in again} == {
            (number, 1) for number in ("0", "5", "10", "15")
        }
        for message, worker in [*again, *(pair for pair in held if int(pair[0].data) % 5)]:
            await worker.ack(message)
        assert await nothing(one) and await nothing(two)
    assert await backlog(client, SCALABLE) == []


async def test_reconnected_consumer_keeps_what_it_holds_and_counts_nothing(client: Client, topic: str) -> None:
    async with client.queue_consumer(topic, subscription="s", start="earliest") as worker:
        await publish(client, topic, 10)
        held = await received(worker, 10)
        for segment_consumer in worker._segment_consumers.values():
            assert segment_consumer._connection is not None
            segment_consumer._connection.abort("cut by the test")
        await worker.nack(next(message for message in held if text(message) == "4"), delay=0.5)
        (again,) = await received(worker, 1)
        assert (text(again), again.redelivery_count) == ("4", 1)
        assert await nothing(worker)
        for message in held:
            await worker.ack(message)
    assert await backlog(client, topic) == []


def deliver(subscribe: ReceivedCommand, *bodies: bytes) -> None:
    """A batch for the consumer of this SUBSCRIBE."""
    delivered = BaseCommand(type=BaseCommand.MESSAGE)
    delivered.message.consumer_id = subscribe.body.consumer_id
    delivered.message.message_id.ledgerId, delivered.message.message_id.entryId = 3, 4
    subscribe.connection.send_frame(frame_with_payload(delivered, build_batch(bodies)))


@pytest.mark.parametrize("is_announced", [True, False])
async def test_nack_names_the_message_only_to_brokers_that_announced_it(is_announced: bool) -> None:
    async with (
        FakeBroker(anabranch_extensions=True, anabranch_message_nacks=is_announced) as broker,
        anabranch.connect(broker.url) as client,
    ):
        opening = asyncio.ensure_future(client.queue_consumer(REGULAR, subscription="s").__aenter__())
        subscribe = await broker.expect(BaseCommand.SUBSCRIBE)
        subscribe.answer(BaseCommand.SUCCESS)
        worker = await opening
        await broker.expect(BaseCommand.FLOW)
        deliver(subscribe, b"0", b"1", b"2")
        messages = await received(worker, 3)
        await worker.nack(messages[1], delay=0)
        (one,) = (await broker.expect(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)).body.message_ids
        assert (one.ledgerId, one.entryId) == (3, 4)
        assert list(one.ack_set) == ([0b010] if is_announced else [])
        assert one.HasField("batch_size") == is_announced
        await worker.close(timeout=0)


async def test_consumer_whose_ack_is_not_answered_leaves_nothing_at_the_broker() -> None:
    """Otherwise the broker would go on to deliver to a consumer that no longer exists."""
    async with FakeBroker() as broker, anabranch.connect(broker.url, operation_timeout=0.5) as client:
        opening = asyncio.ensure_future(client.queue_consumer(REGULAR, subscription="s").__aenter__())
        subscribe = await broker.expect(BaseCommand.SUBSCRIBE)
        subscribe.answer(BaseCommand.SUCCESS)
        worker = await opening
        await broker.expect(BaseCommand.FLOW)
        deliver(subscribe, b"0")
        await worker.ack((await received(worker, 1))[0])
        await broker.expect(BaseCommand.ACK)  # and it is not answered
        closing = await broker.expect(BaseCommand.CLOSE_CONSUMER)
        assert closing.body.consumer_id == subscribe.body.consumer_id
        assert (await broker.expect(BaseCommand.SUBSCRIBE)).body.consumer_id != subscribe.body.consumer_id
        await worker.close(timeout=0)


async def test_seek_that_overtakes_the_answer_to_an_ack_is_not_undone() -> None:
    """Pulsar's broker answers an ack when it is durable. It may seek and close the consumer before that."""
    quick = ConnectionPolicy(backoff=Backoff(initial=0.01, maximum=0.01))
    async with FakeBroker() as broker, anabranch.connect(broker.url, connection=quick) as client:
        opening = asyncio.ensure_future(client.stream_consumer(REGULAR, subscription="s").__aenter__())
        subscribe = await broker.expect(BaseCommand.SUBSCRIBE)
        subscribe.answer(BaseCommand.SUCCESS)
        reader = await opening
        await broker.expect(BaseCommand.FLOW)
        deliver(subscribe, b"0", b"1")
        await reader.ack_cumulative((await received(reader, 2))[-1])
        ack = await broker.expect(BaseCommand.ACK)
        subscribe.connection.send_command(
            BaseCommand.CLOSE_CONSUMER, consumer_id=subscribe.body.consumer_id, request_id=99
        )
        subscribing = asyncio.ensure_future(broker.expect(BaseCommand.SUBSCRIBE))
        await asyncio.wait([subscribing], timeout=0.2)
        assert not subscribing.done(), "an ack without an answer is sent again, after the seek"
        ack.answer(BaseCommand.ACK_RESPONSE, consumer_id=ack.body.consumer_id)
        again = await subscribing
        again.answer(BaseCommand.SUCCESS)
        await broker.expect(BaseCommand.FLOW)  # and no ack before it
        deliver(again, b"0", b"1")
        assert [message.value for message in await received(reader, 2)] == [b"0", b"1"]
        await reader.close(timeout=0)


async def test_seek_forgets_redelivery_counts(client: Client, node: Node) -> None:
    async with client.queue_consumer(REGULAR, subscription="s", start="earliest") as worker:
        await publish(client, REGULAR, 4)
        messages = await received(worker, 4)
        await worker.nack(messages[1], delay=0)
        assert (await received(worker, 1))[0].redelivery_count == 1
        for message in messages:
            await worker.ack(message)
        topic = node.services.topics.loaded(TopicName.parse(REGULAR))
        assert isinstance(topic, Topic)
        subscription = topic.subscriptions["s"]
        await until(lambda: not subscription.cursor.has_backlog)
        await until(lambda: all(one.state.is_clean for one in worker._segment_consumers.values()))
        await subscription.seek(topic.log.first_position)
        assert {message.redelivery_count for message in await received(worker, 4)} == {0}
