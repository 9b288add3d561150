"""All topics of a broker in memory: opened once, unloaded when idle, deleted; one failure affects no other topic."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.errors import NamespaceNotFound, TopicFenced, TopicNotFound
from anabranch.broker.placement import Address, ServedElsewhere
from anabranch.broker.publish.producer import Publish
from anabranch.broker.topic.non_persistent_topic import NonPersistentTopic
from anabranch.broker.topic.topic import Topic
from anabranch.model.errors import Error, NotAllowed, NotReady
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import build_entry
from anabranch.storage.interface import StorageError
from tests.support.in_memory.broker import NAME, BrokerWorld
from tests.support.in_memory.broker_fakes import peer_of

OTHER = TopicName.parse("persistent://public/default/other")


async def test_a_topic_is_opened_once_however_many_ask() -> None:
    world = await BrokerWorld().start()
    found = await asyncio.gather(*(world.topics.get(NAME, create=True) for _ in range(5)))
    assert len({id(topic) for topic in found}) == 1
    assert len(world.opened) == 1


async def test_opening_survives_cancellation_of_the_first_caller() -> None:
    world = await BrokerWorld().start()
    first = asyncio.ensure_future(world.topics.get(NAME, create=True))
    second = asyncio.ensure_future(world.topics.get(NAME, create=True))
    await asyncio.sleep(0)
    first.cancel()
    assert isinstance(await second, Topic)


async def test_caller_that_may_create_is_not_refused_with_others() -> None:
    world = await BrokerWorld().start()
    outcomes = await asyncio.gather(
        world.topics.get(NAME, create=False), world.topics.get(NAME, create=True), return_exceptions=True
    )
    assert isinstance(outcomes[1], Topic)
    assert isinstance(outcomes[0], TopicNotFound | Topic)


async def test_administrator_and_client_create_the_same_topic_at_once() -> None:
    world = await BrokerWorld().start()
    await asyncio.gather(world.topics.create(NAME), world.topics.get(NAME, create=True), world.topics.create(NAME))
    assert len(world.opened) == 1
    topic = await world.topic()
    assert len(await world.publish(topic, 0)) == 1


async def test_missing_topic_and_namespace_have_different_errors() -> None:
    world = await BrokerWorld(auto_create_topics=False).start()
    with pytest.raises(TopicNotFound):
        await world.topics.get(NAME, create=True)
    with pytest.raises(NamespaceNotFound):
        await world.topics.get(TopicName.parse("persistent://public/nowhere/t"), create=True)
    with pytest.raises(NotAllowed):
        await world.topics.get(TopicName.parse("topic://public/default/t"), create=True)
    with pytest.raises(TopicNotFound):
        await world.topics.delete(NAME, force=False)


async def test_non_persistent_topics_need_no_log() -> None:
    world = await BrokerWorld().start()
    name = TopicName.parse("non-persistent://public/default/t")
    assert isinstance(await world.topics.get(name, create=True), NonPersistentTopic)
    assert not world.opened


async def test_failed_opening_is_tried_again_by_the_next() -> None:
    world = await BrokerWorld().start()
    world.fail_open = StorageError("no disk")
    with pytest.raises(StorageError):
        await world.topics.get(NAME, create=True)
    world.fail_open = None
    assert isinstance(await world.topics.get(NAME, create=True), Topic)


async def test_topic_that_cannot_be_loaded_closes_its_log() -> None:
    world = await BrokerWorld(deduplication=True).start()
    topic = await world.topic()
    at = await world.publish(topic, 0, 1)
    await world.crash()
    world.ledgers.fail_ledger = at[0].ledger
    world.ledgers.fail_reads = StorageError("loose cable")
    with pytest.raises(StorageError):
        await world.topic()
    world.ledgers.fail_reads = None
    with pytest.raises(StorageError, match="closed"):
        await world.opened[-1].trim()
    assert (await world.topic()).deduplication.last_sequence("filler") == 1


async def test_sequences_behind_a_hole_are_not_counted() -> None:
    """What is missing was never confirmed: it will be sent again, and must not be taken for a duplicate."""
    world = await BrokerWorld(deduplication=True).start()
    topic = await world.topic()
    at = await world.publish(topic, 0, 1, 2, 3)
    await world.crash()
    world.ledgers.corrupt.add((at[2].ledger, at[2].entry))
    assert (await world.topic()).deduplication.last_sequence("filler") == 1


async def test_rollback_starts_so_many_seconds_ago() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producer = world.producer("filler")
    for sequence in range(4):  # one every ten seconds
        payload = build_entry(b"x", producer_name="filler", sequence_id=sequence, publish_time=world.clock.now_ms())
        topic.publish(Publish(producer, sequence, 0, sequence, 1, payload, True))
        await world.settle(lambda: producer.is_idle)
        world.clock.advance(10)
    last = topic.log.last_position
    _, consumer = await world.subscribe(topic, "new", rollback_seconds=25, from_earliest=False)
    assert peer_of(consumer).messages() == [Position(last.ledger, last.entry - 1), last]


async def test_idle_topics_are_unloaded_and_loaded_again() -> None:
    world = await BrokerWorld(idle_topic_seconds=60).start()
    topic = await world.topic()
    at = await world.publish(topic, 0)
    subscription, consumer = await world.subscribe(topic)
    for _ in range(20):
        world.clock.advance(5)
        await world.settle()
    assert world.topics.loaded(NAME) is topic, "a consumer is attached"
    topic.detach(subscription, consumer)
    for _ in range(20):
        world.clock.advance(5)
        await world.settle()
    assert world.topics.loaded(NAME) is None
    again = await world.topic()
    assert again is not topic
    _, consumer = await world.subscribe(again)
    assert peer_of(consumer).messages() == at


async def test_sweep_continues_when_one_topic_cannot_be_closed() -> None:
    world = await BrokerWorld(idle_topic_seconds=60).start()
    bad, good = await world.topic(), await world.topic(OTHER)

    async def refuse() -> None:
        raise StorageError("stuck")

    bad.log.close = refuse  # type: ignore[method-assign]  # a log that cannot be closed
    for _ in range(40):
        world.clock.advance(5)
        await world.settle()
    assert good not in list(world.topics)
    third = await world.topic(TopicName.parse("persistent://public/default/third"))
    for _ in range(40):
        world.clock.advance(5)
        await world.settle()
    assert third not in list(world.topics), "the sweep is still alive"


async def test_name_of_a_deleted_topic_starts_empty() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    await world.publish(topic, 0, 1)
    await world.subscribe(topic)
    with pytest.raises(NotAllowed):
        await world.topics.delete(NAME, force=False)
    await world.topics.delete(NAME, force=True)
    assert not await world.catalog.exists(NAME)
    again = await world.topic()
    assert again.log.total_messages == 0
    assert not again.subscriptions


async def test_use_during_deletion_fails_or_gets_a_new_topic() -> None:
    world = await BrokerWorld().start()
    await world.topic()

    async def use() -> str:
        try:
            topic = await world.topics.get(NAME, create=True)
            assert isinstance(topic, Topic)
            await topic.add_producer(world.producer("p"), None)
        except Error as error:
            assert error.retryable, error
            return "refused"
        return "served"

    outcomes = await asyncio.gather(world.topics.delete(NAME, force=True), *(use() for _ in range(5)))
    assert set(outcomes[1:]) <= {"refused", "served"}
    topic = await world.topic()
    await topic.add_producer(world.producer("after"), None)
    assert await world.publish(topic, 0, producer=world.producer("x"))


async def test_closing_waits_and_the_next_opening_waits_for_it() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producer = world.producer("p")
    await topic.add_producer(producer, None)
    closing = asyncio.ensure_future(world.topics.close(NAME))
    await asyncio.sleep(0)
    again = await world.topic()
    assert closing.done()
    assert again is not topic
    with pytest.raises(TopicFenced):
        await topic.add_producer(world.producer("late"), None)


@pytest.mark.parametrize("cold", [False, True], ids=["from memory", "from disk"])
async def test_fault_in_dispatch_loses_no_message(cold: bool) -> None:
    """Not the other topics, not the other subscriptions, and in the end not the one it happened to."""
    world = await BrokerWorld().start()
    bad, good = await world.topic(), await world.topic(OTHER)
    subscription, unlucky = await world.subscribe(bad, "unlucky", permits=0)
    _, neighbour = await world.subscribe(bad, "neighbour")
    _, other = await world.subscribe(good)
    at = [*await world.publish(bad, 0), *await world.publish(bad, 1)]
    await world.publish(good, 0)
    if cold:
        world.ledgers.uncached.add(at[0].ledger)
    send, broken = peer_of(unlucky).send, [True]

    def failing(*buffers: bytes | bytearray | memoryview) -> None:
        if broken:
            broken.clear()
            raise RuntimeError("a fault in our own code")
        send(*buffers)

    peer_of(unlucky).send = failing  # type: ignore[method-assign]  # a part that misbehaves for this test
    subscription.flow(unlucky, 10)
    await world.settle()
    assert [kind for kind, _ in peer_of(unlucky).frames()] == [BaseCommand.CLOSE_CONSUMER]
    assert peer_of(neighbour).messages() == at
    assert len(peer_of(other).messages()) == 1
    _, again = await world.subscribe(bad, "unlucky")
    await world.settle()
    assert peer_of(again).messages() == at


async def test_stopping_broker_refuses_topics() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producer = world.producer("p")
    await topic.add_producer(producer, None)
    await world.topics.stop()
    with pytest.raises(NotReady):
        await world.topics.get(NAME, create=True)
    assert producer.closed
    assert len(world.topics) == 0


# -- topics that live elsewhere

HEIR = Address("pulsar://owner:1", "http://heir:2")


async def test_topic_of_another_broker_is_neither_opened_nor_created() -> None:
    world = await BrokerWorld().start()
    elsewhere = {OTHER}

    def check_here(name: TopicName) -> None:
        if name in elsewhere:
            raise ServedElsewhere(name, HEIR)

    world.topics._check_here = check_here
    for attempt in (world.topics.get(OTHER, create=True), world.topics.create(OTHER)):
        with pytest.raises(ServedElsewhere) as caught:
            await attempt
        assert caught.value.address == HEIR
    assert not await world.catalog.exists(OTHER)
    await world.topic()
    elsewhere.add(NAME)
    with pytest.raises(ServedElsewhere):
        await world.topics.get(NAME, create=False)


async def test_topic_moved_away_while_opening_is_closed_again() -> None:
    world = await BrokerWorld().start()
    calls = 0

    def check_here(name: TopicName) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise ServedElsewhere(name, HEIR)

    world.topics._check_here = check_here
    with pytest.raises(ServedElsewhere):
        await world.topics.get(NAME, create=True)
    assert world.topics.loaded(NAME) is None


async def test_hand_over_closes_topics_and_notifies_clients_later() -> None:
    world = await BrokerWorld().start()
    moving, staying = await world.topic(), await world.topic(OTHER)
    producer = world.producer("p")
    await moving.add_producer(producer, None)
    _, consumer = await world.subscribe(moving)
    stays = world.producer("q")
    await staying.add_producer(stays, None)
    await world.publish(moving, 0, producer=producer)
    all_notifications = await world.topics.hand_over(lambda name: name == NAME, lambda name: HEIR)
    assert (world.topics.loaded(NAME), world.topics.loaded(OTHER)) == (None, staying)
    assert producer.closed and not stays.closed
    assert peer_of(producer).bodies(BaseCommand.CLOSE_PRODUCER) == []
    assert peer_of(consumer).bodies(BaseCommand.CLOSE_CONSUMER) == []
    for notifications in all_notifications:
        notifications.send()
        notifications.send()  # only once
    (frame,) = peer_of(producer).bodies(BaseCommand.CLOSE_PRODUCER)
    assert (frame.producer_id, frame.assignedBrokerServiceUrl) == (producer.producer_id, "pulsar://owner:1")
    (frame,) = peer_of(consumer).bodies(BaseCommand.CLOSE_CONSUMER)
    assert (frame.consumer_id, frame.assignedBrokerServiceUrl) == (consumer.consumer_id, "pulsar://owner:1")
    assert peer_of(stays).frames() == []
    assert (await world.topic()).log.total_messages == 1  # durable


async def test_the_policies_that_were_set_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first change is still being applied when the second one is made, by another broker perhaps."""
    world = await BrokerWorld().start()
    topic = await world.topic()
    entered, go_on = asyncio.Event(), asyncio.Event()
    apply = Topic.apply

    async def slow(self: Topic, policies: Policies) -> None:
        if not entered.is_set():
            entered.set()
            await go_on.wait()
        await apply(self, policies)

    monkeypatch.setattr(Topic, "apply", slow)
    await world.catalog.set_deduplication("public/default", True)
    first = asyncio.ensure_future(world.topics.apply_policies("public/default"))
    await entered.wait()
    await world.catalog.set_deduplication("public/default", False)
    second = asyncio.ensure_future(world.topics.apply_policies("public/default"))
    for _ in range(50):
        await asyncio.sleep(0)  # the second one gets as far as it can
    go_on.set()
    await asyncio.gather(first, second)
    assert not topic.deduplication.is_on
