"""Non-persistent topics: entries go to ready consumers and are not stored; access rules are as for other topics."""

from __future__ import annotations

import pytest

from anabranch.broker.errors import ConsumerBusy, ProducerBusy, SubscriptionNotFound, TopicFenced
from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.subscription.consumer import Consumer
from anabranch.broker.topic.non_persistent_topic import MemorySubscription, NonPersistentTopic
from anabranch.model.errors import NotAllowed
from anabranch.model.names import TopicName
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import build_entry
from anabranch.protocol.server_errors import ServerError
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.broker_fakes import RecordingPeer, numbers, peer_of

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType
NAME = TopicName.parse("non-persistent://public/default/t")


class Scene:
    def __init__(self) -> None:
        self.world = BrokerWorld()
        self.topic = NonPersistentTopic(
            NAME, settings=self.world.settings, clock=self.world.clock, mark_active=lambda _: None
        )
        self.producer = self.world.producer("filler")

    async def subscribe(
        self, kind: SubscriptionType = SHARED, *, permits: int = 100, peer: RecordingPeer | None = None
    ) -> tuple[MemorySubscription, Consumer]:
        found, consumer = await self.topic.subscribe(self.world.request("s", kind), peer or RecordingPeer())
        found.flow(consumer, permits)
        return found, consumer

    def publish(self, *sequences: int, key: str | None = None, producer: Producer | None = None) -> None:
        producer = producer or self.producer
        for sequence in sequences:
            self.topic.publish(Publish(producer, sequence, 0, sequence, 1, build_entry(b"x", key=key), True))


async def test_entry_reaches_attached_consumers_only() -> None:
    scene = Scene()
    scene.publish(0)
    subscription, consumer = await scene.subscribe(permits=2)
    scene.publish(1, 2, 3)
    assert numbers(peer_of(consumer).messages()) == [1, 2]
    assert subscription.messages_dropped == 1
    assert isinstance(scene.producer.peer, RecordingPeer)
    assert [body.sequence_id for body in scene.producer.peer.bodies(BaseCommand.SEND_RECEIPT)] == [0, 1, 2, 3]
    assert scene.producer.peer.pending_bytes == 0


async def test_shared_in_turn_and_keys_stay_together() -> None:
    scene = Scene()
    consumers = [(await scene.subscribe(SHARED))[1] for _ in range(2)]
    scene.publish(0, 1, 2, 3)
    assert [len(peer_of(one).messages()) for one in consumers] == [2, 2]
    scene = Scene()
    consumers = [(await scene.subscribe(KEY_SHARED))[1] for _ in range(3)]
    for key in "abcdefghij":
        scene.publish(0, 1, 2, key=key)
    assert all(len(peer_of(one).messages()) % 3 == 0 for one in consumers)


async def test_exclusive_takes_over_from_a_dead_one_only() -> None:
    scene = Scene()
    peer = RecordingPeer()
    await scene.subscribe(EXCLUSIVE, peer=peer)
    with pytest.raises(ConsumerBusy):
        await scene.subscribe(EXCLUSIVE)
    with pytest.raises(ConsumerBusy):
        await scene.subscribe(SHARED)
    peer.answers_probes = False
    subscription, consumer = await scene.subscribe(EXCLUSIVE)
    assert subscription.consumers == [consumer]


async def test_producer_name_of_a_dead_one_is_free() -> None:
    scene = Scene()
    peer = RecordingPeer()
    await scene.topic.add_producer(scene.world.producer("p", peer=peer), None)
    with pytest.raises(ProducerBusy):
        await scene.topic.add_producer(scene.world.producer("p"), None)
    peer.answers_probes = False
    again = scene.world.producer("p")
    await scene.topic.add_producer(again, None)
    assert scene.topic.producers == {"p": again}


async def test_failover_tells_the_next_one() -> None:
    scene = Scene()
    subscription, one = await scene.subscribe(FAILOVER)
    _, two = await scene.subscribe(FAILOVER)
    peer_of(two).frames()
    scene.topic.detach(subscription, one)
    assert [body.is_active for body in peer_of(two).bodies(BaseCommand.ACTIVE_CONSUMER_CHANGE)] == [True]
    scene.publish(0)
    assert len(peer_of(two).messages()) == 1


async def test_access_modes_hold_here_too() -> None:
    scene = Scene()
    holder = scene.world.producer("a", mode=AccessMode.EXCLUSIVE)
    waiting = scene.world.producer("b", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    await scene.topic.add_producer(holder, None)
    assert not (await scene.topic.add_producer(waiting, None)).ready
    await scene.topic.add_producer(scene.world.producer("c", mode=AccessMode.EXCLUSIVE_WITH_FENCING), None)
    assert isinstance(holder.peer, RecordingPeer)
    assert isinstance(waiting.peer, RecordingPeer)
    assert [kind for kind, _ in holder.peer.frames()] == [BaseCommand.CLOSE_PRODUCER]
    ((kind, body),) = waiting.peer.frames()
    assert (kind, body.error) == (BaseCommand.ERROR, ServerError.ProducerFenced)


async def test_subscriptions_end_with_their_last_consumer() -> None:
    scene = Scene()
    subscription, consumer = await scene.subscribe()
    scene.topic.detach(subscription, consumer)
    assert not scene.topic.subscriptions
    with pytest.raises(SubscriptionNotFound):
        await scene.topic.unsubscribe("s", force=True)


async def test_nothing_to_seek_in_and_a_last_id_all_the_same() -> None:
    scene = Scene()
    subscription, _ = await scene.subscribe()
    with pytest.raises(NotAllowed):
        await subscription.seek((await scene.topic.last_message())[0])
    scene.publish(0, 1)
    assert (await scene.topic.last_message())[0].entry == 1


async def test_closing_tells_everybody() -> None:
    scene = Scene()
    producer = scene.world.producer("p")
    await scene.topic.add_producer(producer, None)
    _, consumer = await scene.subscribe()
    with pytest.raises(NotAllowed):
        await scene.topic.delete(force=False)
    await scene.topic.close()
    assert isinstance(producer.peer, RecordingPeer)
    assert [kind for kind, _ in producer.peer.frames()] == [BaseCommand.CLOSE_PRODUCER]
    assert [kind for kind, _ in peer_of(consumer).frames()] == [BaseCommand.CLOSE_CONSUMER]
    with pytest.raises(TopicFenced):
        await scene.subscribe()
