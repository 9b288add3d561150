"""One topic in memory: producers that race and fail, subscriptions, state after a crash."""

from __future__ import annotations

import asyncio
import logging

import pytest

from anabranch.broker.errors import (
    ConsumerBusy,
    ProducerBusy,
    ProducerFenced,
    SubscriptionNotFound,
    TopicFenced,
    TopicTerminated,
)
from anabranch.broker.publish.producer import Publish
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.topic.topic import Topic
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.position import LATEST, Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import build_batch, build_entry
from anabranch.protocol.server_errors import ServerError
from anabranch.storage.interface import StorageError
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.broker_fakes import RecordingPeer, numbers, peer_of

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType
FENCING = AccessMode.EXCLUSIVE_WITH_FENCING


# -- producers


async def test_a_live_name_is_refused_a_dead_one_makes_room() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    old = world.producer("same")
    await topic.add_producer(old, None)
    with pytest.raises(ProducerBusy):
        await topic.add_producer(world.producer("same"), None)
    assert isinstance(old.peer, RecordingPeer)
    old.peer.answers_probes = False
    new = world.producer("same")
    await topic.add_producer(new, None)
    assert topic.producers == {"same": new}
    assert old.closed


async def test_two_newcomers_race_for_a_dead_name_and_one_wins() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    dead = RecordingPeer()
    asked = asyncio.Event()
    silent = asyncio.Event()

    async def no_answer() -> bool:
        asked.set()
        await silent.wait()
        return False

    dead.is_alive = no_answer  # type: ignore[method-assign]  # this peer answers late and only once
    await topic.add_producer(world.producer("same", peer=dead), None)
    newcomers = [world.producer("same"), world.producer("same")]
    tasks = [asyncio.ensure_future(topic.add_producer(one, None)) for one in newcomers]
    await asked.wait()
    await world.settle()
    silent.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["Admission", "ProducerBusy"]
    winner = newcomers[[isinstance(one, ProducerBusy) for one in outcomes].index(False)]
    assert topic.producers == {"same": winner}


async def test_same_producer_reconnects_with_a_higher_epoch() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    peer = RecordingPeer()
    await topic.add_producer(world.producer("p", peer=peer, producer_id=1), None)
    again = world.producer("p", peer=peer, producer_id=1, epoch=1)
    await topic.add_producer(again, None)
    assert topic.producers == {"p": again}


async def test_topic_epoch_survives_a_crash() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    admission = await topic.add_producer(world.producer("a", mode=FENCING), None)
    assert admission.epoch == 1
    await world.crash()
    topic = await world.topic()
    with pytest.raises(ProducerFenced):
        await topic.add_producer(world.producer("old", mode=AccessMode.EXCLUSIVE), 0)
    assert (await topic.add_producer(world.producer("a", mode=FENCING), 1)).epoch == 1


async def test_producer_fenced_while_its_epoch_is_saved_is_refused() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    first, second = world.producer("a", mode=FENCING), world.producer("b", mode=FENCING)
    outcomes = await asyncio.gather(
        topic.add_producer(first, None), topic.add_producer(second, None), return_exceptions=True
    )
    assert isinstance(outcomes[0], ProducerFenced), "it must not believe that it may produce"
    assert not isinstance(outcomes[1], BaseException)
    assert topic.producers == {"b": second}


async def test_promoted_producer_gets_epoch_and_credits() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    holder = world.producer("a", mode=AccessMode.EXCLUSIVE)
    waiting = world.producer("b", mode=AccessMode.WAIT_FOR_EXCLUSIVE, credits=True)
    await topic.add_producer(holder, None)
    assert not (await topic.add_producer(waiting, None)).ready
    assert not waiting.is_ready
    topic.remove_producer(holder)
    assert isinstance(waiting.peer, RecordingPeer)
    await world.settle(lambda: waiting.is_ready)
    await world.settle()
    (answer,) = waiting.peer.bodies(BaseCommand.PRODUCER_SUCCESS)
    assert (answer.request_id, answer.producer_ready, answer.topic_epoch) == (waiting.request_id, True, 2)
    assert answer.credit_bytes == waiting.window.bytes_max


async def test_waiting_producer_is_refused_when_the_topic_closes() -> None:
    """It has no producer yet that could be closed: its request is still open."""
    world = await BrokerWorld().start()
    topic = await world.topic()
    await topic.add_producer(world.producer("a", mode=AccessMode.EXCLUSIVE), None)
    fenced, unloaded = (world.producer(name, mode=AccessMode.WAIT_FOR_EXCLUSIVE) for name in "bd")
    await topic.add_producer(fenced, None)
    await topic.add_producer(world.producer("c", mode=FENCING), None)
    await topic.add_producer(unloaded, None)
    await topic.close()
    for producer, code in ((fenced, ServerError.ProducerFenced), (unloaded, ServerError.ServiceNotReady)):
        assert isinstance(producer.peer, RecordingPeer)
        ((kind, body),) = producer.peer.frames()
        assert (kind, body.request_id, body.error) == (BaseCommand.ERROR, producer.request_id, code)
        assert producer.peer.closed_producers == [producer.producer_id]


async def test_a_lost_append_closes_every_producer_once() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producers = [world.producer("a"), world.producer("b")]
    for producer in producers:
        await topic.add_producer(producer, None)
    world.ledgers.fail_groups = StorageError("broken disk")
    await world.publish(topic, 0, 1, producer=producers[0])
    for producer in producers:
        assert isinstance(producer.peer, RecordingPeer)
        assert [kind for kind, _ in producer.peer.frames()] == [BaseCommand.CLOSE_PRODUCER]
        assert producer.peer.closed_producers == [producer.producer_id]
        assert producer.peer.pending_bytes == 0
    assert not topic.producers
    world.ledgers.fail_groups = None
    again = world.producer("a")
    await topic.add_producer(again, None)
    assert await world.publish(topic, 0, 1, producer=again)


async def test_terminated_topic_takes_no_producer() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    await topic.terminate()
    with pytest.raises(TopicTerminated):
        await topic.add_producer(world.producer("a"), None)


async def test_message_that_meets_a_termination_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producer = world.producer("a")
    await topic.add_producer(producer, None)

    def publish() -> dict[str, str]:
        """Called when appends are stopped, and before the end is written."""
        payload = build_entry(b"x", producer_name="a", sequence_id=0)
        topic.publish(Publish(producer, 0, 0, 0, 1, payload, True))
        return {}

    await topic.log.terminate(publish)
    await world.settle(lambda: not topic.producers)
    assert not topic.producers, "it was refused, and its producer closed"
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- deduplication


async def test_sequences_survive_a_crash_without_a_snapshot() -> None:
    world = await BrokerWorld(deduplication=True).start()
    topic = await world.topic()
    await world.publish(topic, 0, 1, 2, producer=world.producer("p"))
    await world.crash()
    topic = await world.topic()
    assert topic.deduplication.last_sequence("p") == 2
    assert await world.publish(topic, 1, 2, 3, producer=world.producer("p")) == [topic.log.last_position]


async def test_publish_during_switch_to_deduplication_counts() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producer = world.producer("p")
    await world.publish(topic, 0)
    switching = asyncio.ensure_future(topic.deduplication.switch(True))
    for sequence in range(1, 40):
        await world.publish(topic, sequence, producer=producer)
        if switching.done():
            break
    await switching
    assert topic.deduplication.last_sequence("p") == sequence
    assert sequence > 1


# -- subscriptions


async def test_subscribe_deliver_ack_survives_a_crash() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic)
    at = await world.publish(topic, 0, 1, 2)
    assert peer_of(consumer).messages() == at
    subscription.ack(consumer, [(at[1], (), 0)])
    await subscription.flush()
    await world.crash()
    topic = await world.topic()
    _, again = await world.subscribe(topic)
    assert peer_of(again).messages() == [at[0], at[2]]


async def test_first_subscribers_get_one_cursor() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    found = await asyncio.gather(*(world.subscribe(topic) for _ in range(3)))
    assert len({id(subscription) for subscription, _ in found}) == 1
    assert len(found[0][0].consumers) == 3


async def test_missing_subscription_may_not_be_made_when_not_allowed() -> None:
    world = await BrokerWorld(auto_create_subscriptions=False).start()
    topic = await world.topic()
    with pytest.raises(SubscriptionNotFound):
        await world.subscribe(topic)


async def test_other_type_is_refused_only_while_consumers_are_attached() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=SHARED)
    with pytest.raises(ConsumerBusy):
        await world.subscribe(topic, kind=FAILOVER)
    topic.detach(subscription, consumer)
    await world.subscribe(topic, kind=FAILOVER)


async def test_dead_exclusive_consumer_makes_room() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    peer = RecordingPeer()
    await world.subscribe(topic, kind=EXCLUSIVE, peer=peer)
    with pytest.raises(ConsumerBusy):
        await world.subscribe(topic, kind=EXCLUSIVE)
    peer.answers_probes = False
    subscription, consumer = await world.subscribe(topic, kind=EXCLUSIVE)
    assert list(subscription.consumers) == [consumer]


async def test_acks_of_unwritten_positions_are_ignored() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic)
    (at,) = await world.publish(topic, 0)
    beyond = Position(at.ledger, at.entry + 1)
    subscription.ack(consumer, [(beyond, (), 0), (LATEST, (), 0), (Position(at.ledger, -1), (), 0)])
    assert await world.publish(topic, 1) == [beyond]
    assert peer_of(consumer).messages() == [at, beyond]
    assert await subscription.backlog_messages() == 2


async def test_cumulative_ack_beyond_the_end_covers_all_entries() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=EXCLUSIVE)
    at = await world.publish(topic, 0, 1)
    subscription.ack_cumulative(consumer, Position(at[1].ledger + 9, 0), ())
    assert await subscription.backlog_messages() == 0
    await world.publish(topic, 2)
    assert await subscription.backlog_messages() == 1


async def test_cumulative_ack_on_shared_is_ignored() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=SHARED)
    at = await world.publish(topic, 0, 1)
    subscription.ack_cumulative(consumer, at[1], ())
    assert await subscription.backlog_messages() == 2


async def test_redelivery_stamps_the_epoch_and_never_an_older_one() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=EXCLUSIVE, epoch=0)
    await world.publish(topic, 0)
    subscription.redeliver(consumer, (), 2)
    subscription.redeliver(consumer, (), 1)
    epochs = [body.consumer_epoch for body in peer_of(consumer).bodies(BaseCommand.MESSAGE)]
    assert epochs == [0, 2, 2]


async def test_delayed_messages_are_delivered_at_their_time() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic)
    (at,) = await world.publish(topic, 0)
    peer_of(consumer).frames()
    subscription._delayed.add(world.clock.now_ms() + 5_000, at)
    consumer.settle(at)
    subscription.pump()
    world.clock.advance(4.9)
    assert peer_of(consumer).messages() == []
    world.clock.advance(0.2)
    assert peer_of(consumer).messages() == [at]


async def test_read_from_disk_that_fails_is_tried_again() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    at = await world.publish(topic, 0, 1)
    world.ledgers.uncached.add(at[0].ledger)
    world.ledgers.fail_reads = StorageError("a cable is loose")
    _, consumer = await world.subscribe(topic)
    await world.settle()
    assert peer_of(consumer).messages() == []
    world.ledgers.fail_reads = None
    world.clock.advance(1)
    await world.settle()
    assert peer_of(consumer).messages() == at


async def test_seek_closes_consumers_and_starts_there() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=EXCLUSIVE)
    at = await world.publish(topic, 0, 1, 2)
    peer_of(consumer).frames()
    await subscription.seek(at[1])
    assert [kind for kind, _ in peer_of(consumer).frames()] == [BaseCommand.CLOSE_CONSUMER]
    _, again = await world.subscribe(topic, kind=EXCLUSIVE)
    assert peer_of(again).messages() == at[1:]


async def test_reader_starts_at_its_position_and_leaves_no_cursor() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    at = await world.publish(topic, 0, 1, 2)
    subscription, consumer = await world.subscribe(topic, "reader", EXCLUSIVE, durable=False, start=at[1])
    assert peer_of(consumer).messages() == at[1:]
    topic.detach(subscription, consumer)
    await world.settle()
    assert "reader" not in topic.subscriptions
    assert "reader" not in topic.log.cursors


async def test_reader_that_reconnects_at_once_keeps_its_new_cursor() -> None:
    """Its goodbye is still being worked on; the cursor of the return must not be swept away with it."""
    world = await BrokerWorld().start()
    topic = await world.topic()
    at = await world.publish(topic, 0, 1, 2)
    subscription, consumer = await world.subscribe(topic, "reader", EXCLUSIVE, durable=False, start=at[0])
    subscription.ack_cumulative(consumer, at[2], ())
    topic.detach(subscription, consumer)
    _, again = await world.subscribe(topic, "reader", EXCLUSIVE, durable=False, start=at[1])
    await world.settle()
    assert peer_of(again).messages() == at[1:]
    assert "reader" in topic.log.cursors


async def test_reader_that_does_not_return_after_seek_is_deleted() -> None:
    world = await BrokerWorld(idle_topic_seconds=30).start()
    topic = await world.topic()
    await topic.add_producer(world.producer("keeps the topic in use"), None)
    await world.publish(topic, 0)
    subscription, _ = await world.subscribe(topic, "reader", EXCLUSIVE, durable=False)
    await subscription.seek(topic.log.first_position)
    assert "reader" in topic.subscriptions
    for _ in range(10):
        world.clock.advance(5)
        await world.settle()
    assert "reader" not in topic.subscriptions
    assert "reader" not in topic.log.cursors


async def test_unsubscribe_during_a_new_subscribe() -> None:
    """In any order, a subscription that exists in the end has an existing cursor."""
    world = await BrokerWorld().start()
    topic = await world.topic()
    _, consumer = await world.subscribe(topic)
    await world.publish(topic, 0, 1)
    results = await asyncio.gather(
        topic.unsubscribe("s", force=False, by=consumer), world.subscribe(topic), return_exceptions=True
    )
    assert not [one for one in results if isinstance(one, BaseException) and not isinstance(one, Error)]
    assert set(topic.subscriptions) == set(topic.log.cursors)
    for name, found in topic.subscriptions.items():
        assert found.cursor is topic.log.cursors[name]


async def test_unsubscribe_needs_force_when_others_are_attached() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    _, one = await world.subscribe(topic)
    _, two = await world.subscribe(topic)
    with pytest.raises(ConsumerBusy):
        await topic.unsubscribe("s", force=False, by=one)
    await topic.unsubscribe("s", force=True, by=one)
    assert [kind for kind, _ in peer_of(two).frames()] == [BaseCommand.CLOSE_CONSUMER]
    assert not topic.subscriptions


async def test_failover_notifies_the_active_consumer() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, one = await world.subscribe(topic, kind=FAILOVER)
    _, two = await world.subscribe(topic, kind=FAILOVER)

    def activations(peer: RecordingPeer) -> list[bool]:
        return [body.is_active for body in peer.bodies(BaseCommand.ACTIVE_CONSUMER_CHANGE)]

    assert (activations(peer_of(one)), activations(peer_of(two))) == ([True], [False])
    topic.detach(subscription, one)
    assert activations(peer_of(two)) == [True]


async def test_end_of_topic_is_sent_after_all_acks_to_clients_that_know_it() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    ignorant = RecordingPeer()
    ignorant.knows_end_of_topic = False
    _, consumer = await world.subscribe(topic)
    _, other = await world.subscribe(topic, peer=ignorant)
    await topic.terminate()
    assert peer_of(consumer).bodies(BaseCommand.REACHED_END_OF_TOPIC)
    assert not peer_of(other).bodies(BaseCommand.REACHED_END_OF_TOPIC)


async def test_deletion_needs_force_while_clients_are_attached() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic)
    with pytest.raises(NotAllowed):
        await topic.delete(force=False)
    topic.detach(subscription, consumer)
    with pytest.raises(NotAllowed):
        await topic.delete(force=False)
    await topic.delete(force=True)
    with pytest.raises(TopicFenced):
        await topic.add_producer(world.producer("late"), None)


async def test_messages_are_numbered_without_gaps() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    assert numbers(await world.publish(topic, *range(5))) == [0, 1, 2, 3, 4]


async def publish_batch(world: BrokerWorld, topic: Topic, messages: int) -> Position:
    producer = world.producer("filler")
    topic.publish(Publish(producer, 0, 0, 0, messages, build_batch([b"x"] * messages), True))
    await world.settle(lambda: producer.is_idle)
    return topic.log.last_position


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
async def test_backlog_counts_messages_when_batches_are_acked_in_parts(kind: SubscriptionType) -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=kind)
    at = await publish_batch(world, topic, 4)
    assert await subscription.backlog_messages() == 4
    subscription.ack(consumer, [(at, (0b1100,), 4)])
    assert consumer.unacked_messages == 2
    subscription.ack(consumer, [(at, (0b1000,), 4)])
    subscription.ack(consumer, [(at, (), 0)])
    assert await subscription.backlog_messages() == 0
    assert consumer.unacked_messages == 0
    at = await publish_batch(world, topic, 3)
    subscription.ack(consumer, [(at, (0b100,), 3)])
    subscription.ack(consumer, [(at, (0,), 3)])
    assert await subscription.backlog_messages() == 0


async def test_backlog_after_an_ack_without_delivery() -> None:
    """After a reconnect a client may acknowledge what it was given before."""
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, permits=0)
    at = await publish_batch(world, topic, 4)
    assert await subscription.backlog_messages() == 4
    subscription.ack(consumer, [(at, (), 0)])
    assert await subscription.backlog_messages() == 0


async def test_backlog_is_answered_while_acks_never_stop() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=EXCLUSIVE)
    at = await world.publish(topic, *range(60))
    count, acked = topic.log.messages_upto, iter(at[:50])

    async def slow(p: Position) -> int:
        """An index on disk: while it is read, the consumer goes on."""
        found = await count(p)
        subscription.ack_cumulative(consumer, next(acked), ())
        return found

    topic.log.messages_upto = slow  # type: ignore[method-assign]  # a part that misbehaves for this test
    assert 40 <= await subscription.backlog_messages() <= 60
    del topic.log.messages_upto
    assert await subscription.backlog_messages() == await count(at[-1]) - await count(subscription.mark_delete)


async def test_subscribe_and_unsubscribe_while_the_topic_closes() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    _, consumer = await world.subscribe(topic, "old")
    async with topic.topic_subscriptions.changing:  # both are on their way
        coming = asyncio.ensure_future(world.subscribe(topic, "new"))
        going = asyncio.ensure_future(topic.unsubscribe("old", force=True, by=consumer))
        await world.settle()
        await topic.close()
    for task in (coming, going):
        with pytest.raises(TopicFenced):
            await task
    with pytest.raises(StorageError):
        topic.log.save_state_nowait("late", b"")
        await topic.log.flush_state()


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_acks_during_unsubscribe_change_nothing(kind: SubscriptionType) -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    subscription, consumer = await world.subscribe(topic, kind=kind)
    at = await world.publish(topic, 0, 1)
    going = asyncio.ensure_future(topic.unsubscribe("s", force=False, by=consumer))
    await asyncio.sleep(0)
    subscription.ack(consumer, [(at[0], (), 0)])
    subscription.ack_cumulative(consumer, at[1], ())
    subscription.redeliver(consumer, [], None)
    await going
    assert await subscription.backlog_messages() == 2
    assert "s" not in topic.log.cursors


@pytest.mark.parametrize("deletes", [False, True], ids=["closed", "deleted"])
async def test_all_clients_are_notified_when_a_topic_closes(deletes: bool) -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    producer = world.producer("p")
    await topic.add_producer(producer, None)
    _, consumer = await world.subscribe(topic)
    await (topic.delete(force=True) if deletes else topic.close())
    assert isinstance(producer.peer, RecordingPeer)
    assert [kind for kind, _ in producer.peer.frames()] == [BaseCommand.CLOSE_PRODUCER]
    assert [kind for kind, _ in peer_of(consumer).frames()] == [BaseCommand.CLOSE_CONSUMER]
    assert consumer.closed


async def test_producer_waiting_at_a_lost_append_is_not_promoted_later() -> None:
    world = await BrokerWorld().start()
    topic = await world.topic()
    holder = world.producer("a", mode=AccessMode.EXCLUSIVE)
    waiting = world.producer("w", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    await topic.add_producer(holder, None)
    await topic.add_producer(waiting, None)
    world.ledgers.fail_groups = StorageError("broken disk")
    await world.publish(topic, 0, producer=holder)
    world.ledgers.fail_groups = None
    await world.settle()
    again = world.producer("a", mode=AccessMode.EXCLUSIVE)
    assert (await topic.add_producer(again, None)).ready
    assert isinstance(waiting.peer, RecordingPeer)
    assert [kind for kind, _ in waiting.peer.frames()] == [BaseCommand.ERROR]
    topic.remove_producer(again)
    await world.settle()
    assert not waiting.peer.frames()
