"""A regular topic that is adopted as a segment of a scalable topic, and released if its migration is undone.

Its log, cursors and acknowledgements stay as they are. The topic's record gets the segment's identity, by which the
topic is a segment whenever it is opened again. From then on clients that cannot follow the migration are refused.
"""

from __future__ import annotations

from anabranch.broker.close_notifications import notify_consumer_closed, notify_producer_closed
from anabranch.broker.segment.owned_segment import OwnedSegment, SegmentListener
from anabranch.broker.segment.segment_state import BLOB, PROPERTY, OwnedSegmentState
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topic.topic_hooks import NoTopicHooks
from anabranch.controller.segment_host import Adopt, Adopted, FencingToken, NotPlanned, OldClient
from anabranch.protocol.managed_clients import is_managed
from anabranch.runtime.clock import Clock


async def adopt(
    topic: Topic, token: FencingToken, request: Adopt, clock: Clock, listener: SegmentListener
) -> OwnedSegment:
    """The topic is a segment, durably, when this returns. Raises NotPlanned for one that cannot be migrated."""
    if topic.log.is_terminated:
        raise NotPlanned(f"{topic.name} is terminated: a topic that takes no messages cannot be migrated")
    topic.check_open()
    segment = OwnedSegment(topic, clock, listener)
    segment.state = OwnedSegmentState(request.segment, request.operation, token)
    await topic.log.set_properties({**topic.log.properties, **segment.state.identity()})
    topic.check_open()  # it may have been closed or deleted meanwhile
    topic.hooks = segment  # no client was admitted between the write and this
    return segment


def adopted(segment: OwnedSegment, *, force: bool) -> Adopted:
    """The clients that cannot follow, and the subscriptions. With `force` these clients are closed."""
    found = facts_of(segment.topic)
    if not force:
        return found
    _close_old_clients(segment.topic)
    return Adopted((), found.subscriptions)


def facts_of(topic: Topic) -> Adopted:
    """The clients of a topic that cannot follow a migration, and its durable subscriptions."""
    kinds = topic.topic_subscriptions.shared_types
    durable = ((name, one) for name, one in sorted(topic.subscriptions.items()) if one.is_durable)
    subscriptions = tuple((name, kinds.get(name, bool(one.cursor.state.holes))) for name, one in durable)
    return Adopted(_old_clients(topic), subscriptions)


async def release(segment: OwnedSegment) -> None:
    """Undoes `adopt`. Cursors that the topic got as a segment are deleted."""
    topic = segment.topic
    topic.check_open()
    for name in segment.state.made:
        if name in topic.subscriptions:
            await topic.drop_subscription(name)
    await topic.log.save_state(BLOB, b"")
    await topic.log.set_properties({key: text for key, text in topic.log.properties.items() if key != PROPERTY})
    for subscription in topic.subscriptions.values():
        subscription.on_moved = None
    topic.log.held_behind = None
    segment.closing()
    topic.hooks = NoTopicHooks()


def _old_clients(topic: Topic) -> tuple[OldClient, ...]:
    found = [
        OldClient("producer", one.name, one.peer.address, one.peer.client_version)
        for one in topic.producers.values()
        if not is_managed(one.metadata)
    ]
    for name, subscription in topic.subscriptions.items():
        for consumer in subscription.consumers:
            if not is_managed(consumer.spec.metadata):
                peer = consumer.peer
                found.append(OldClient("consumer", consumer.spec.name, peer.address, peer.client_version, name))
    return tuple(found)


def _close_old_clients(topic: Topic) -> None:
    for producer in [one for one in topic.producers.values() if not is_managed(one.metadata)]:
        notify_producer_closed(None, producer.peer, producer.producer_id)
        producer.peer.producer_closed(producer.producer_id)
        topic.remove_producer(producer)
    for subscription in tuple(topic.subscriptions.values()):
        for consumer in [one for one in subscription.consumers if not is_managed(one.spec.metadata)]:
            topic.detach(subscription, consumer)
            consumer.peer.consumer_closed(consumer.consumer_id)
            notify_consumer_closed(None, consumer.peer, consumer.consumer_id)
