"""Commands of consumers: SUBSCRIBE, FLOW, ACK, REDELIVER, UNSUBSCRIBE, SEEK, GET_LAST_MESSAGE_ID, CONSUMER_STATS,
CLOSE_CONSUMER.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from anabranch.broker.errors import ClientMistake, ConsumerAssignFailed, ConsumerNotFound
from anabranch.broker.segment.owned_segment import segment_of
from anabranch.broker.services import Services
from anabranch.broker.subscription.consumer import (
    BucketClaim,
    Consumer,
    ConsumerSpec,
    KeySharedPolicy,
    SegmentGrant,
    SubscribeRequest,
)
from anabranch.broker.subscription.subscription import ACK_WORDS_MAX, Subscription
from anabranch.broker.topic.non_persistent_topic import MemorySubscription, NonPersistentTopic
from anabranch.broker.topic_registry.factory import AnyTopic
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler, concerns
from anabranch.broker.wire.schema_commands import wire_schema
from anabranch.model.entry_buckets import BadBuckets, EntryBuckets
from anabranch.model.errors import Error, LimitExceeded, NotAllowed, NotReady
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.model.routing import RingHash
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand, position_of, signed
from anabranch.protocol.errors import BadCommand
from anabranch.protocol.frames import Frame
from anabranch.protocol.server_errors import server_error
from anabranch.security.authorization import Resource
from anabranch.storage.cursor.ack_state import mask_of

PERMITS_MAX = 1 << 31
CONSUMER_NAME_MAX = 1_024
STICKY = 1


@dataclass(slots=True)
class Attached:
    consumer: Consumer
    subscription: Subscription | MemorySubscription
    topic: AnyTopic
    unconfirmed: list[int] = field(default_factory=list)  # request ids of acks that are not durable yet
    is_confirming: bool = False

    def detach(self) -> None:
        self.topic.detach(self.subscription, self.consumer)  # type: ignore[arg-type]  # both were made by this topic

    @property
    def resource(self) -> Resource:
        return Resource.of_topic(self.topic.name, self.subscription.name)


class ConsumerCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services
        self._attached: dict[int, Attached] = {}
        self._opening: dict[int, asyncio.Task[Any]] = {}

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.SUBSCRIBE): self._subscribe,
            int(BaseCommand.FLOW): self._flow,
            int(BaseCommand.ACK): self._ack,
            int(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES): self._redeliver,
            int(BaseCommand.UNSUBSCRIBE): self._unsubscribe,
            int(BaseCommand.SEEK): self._seek,
            int(BaseCommand.GET_LAST_MESSAGE_ID): self._last_message_id,
            int(BaseCommand.CONSUMER_STATS): self._stats,
            int(BaseCommand.CLOSE_CONSUMER): self._close,
        }

    # -- SUBSCRIBE

    def _subscribe(self, body: Any, frame: Frame) -> None:
        consumer_id = body.consumer_id
        if consumer_id in self._attached:
            self._subscribe_again(body, self._attached[consumer_id])
            return
        if consumer_id in self._opening:
            self._connection.fail(body.request_id, NotReady("this consumer is still being created"))
            return
        if len(self._attached) + len(self._opening) >= self._services.settings.consumers_per_connection_max:
            self._connection.fail(body.request_id, LimitExceeded("too many consumers on one connection"))
            return
        task = self._connection.start_request(body.request_id, self._open(body), "subscribe")
        if task is not None:
            self._opening[consumer_id] = task
            task.add_done_callback(lambda _: self._opening.pop(consumer_id, None))

    def _subscribe_again(self, body: Any, attached: Attached) -> None:
        """Names the entry buckets that the consumer reads from now on, if it shares a segment."""
        consumer, segment = attached.consumer, segment_of(attached.topic)
        if consumer.spec.key_shared.claim is not None and segment is not None and (claim := _claim(body)) is not None:
            assert isinstance(attached.subscription, Subscription)
            try:
                segment.check_claim(attached.subscription.name, consumer, claim.generation)
                attached.subscription.claim(consumer, claim)
            except Error as error:
                self._connection.fail(body.request_id, error)
                return
        self._connection.send(replies.success(body.request_id))

    async def _open(self, body: Any) -> None:
        name = TopicName.parse(body.topic)
        request = self._request(body, name)
        changes = self._connection.access_changes
        await self._connection.authorize(BaseCommand.SUBSCRIBE, Resource.of_topic(name, request.name))
        topic = await self._services.topics.get(name, create=body.force_topic_creation)
        await self._services.schemas.admit_consumer(name, wire_schema(body), lambda: topic.is_unused)
        subscription, consumer = await topic.subscribe(request, self._connection)
        attached = Attached(consumer, subscription, topic)
        if not self._connection.is_open:
            attached.detach()
            return
        self._attached[body.consumer_id] = attached
        seeks = subscription.seek_count if self._connection.extensions else None
        self._connection.send(replies.success(body.request_id, seek_count=seeks))
        if changes != self._connection.access_changes:
            await self._check_again(body.consumer_id, attached)
        if isinstance(topic, NonPersistentTopic):
            return
        if topic.log.is_terminated and isinstance(subscription, Subscription) and not subscription.cursor.has_backlog:
            subscription.notify_end_of_topic([consumer])

    def _request(self, body: Any, name: TopicName) -> SubscribeRequest:
        kind = SubscriptionType(int(body.subType))
        if len(body.consumer_name) > CONSUMER_NAME_MAX:
            raise BadCommand("consumer name is too long")
        if body.read_compacted and kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            raise NotAllowed("reading a compacted topic needs an Exclusive or Failover subscription")
        epoch = signed(body.consumer_epoch) if body.HasField("consumer_epoch") else -1
        spec = ConsumerSpec(
            consumer_id=body.consumer_id,
            name=body.consumer_name or self._services.names.consumer(),
            type=kind,
            priority=body.priority_level,
            partition=name.partition_index,
            metadata={pair.key: pair.value for pair in body.metadata},
            key_shared=_key_shared(body) if kind is SubscriptionType.KEY_SHARED else KeySharedPolicy(),
            epoch=epoch if epoch >= 0 else None,
            read_compacted=body.read_compacted,
            grant=SegmentGrant(body.incarnation, body.generation) if body.HasField("generation") else None,
            incarnation=body.incarnation if body.HasField("incarnation") else None,
            nacks_messages=self._connection.nacks_messages,
        )
        return SubscribeRequest(
            name=check_subscription_name(body.subscription),
            spec=spec,
            durable=body.durable,
            from_earliest=body.initialPosition == body.Earliest,
            start=position_of(body.start_message_id) if body.HasField("start_message_id") else None,
            rollback_seconds=min(body.start_message_rollback_duration_sec, 1 << 40),
            create=True,
            properties={pair.key: pair.value for pair in body.subscription_properties},
        )

    # -- messages

    def _flow(self, body: Any, frame: Frame) -> None:
        attached = self._attached.get(body.consumer_id)
        if attached is None:
            return
        consumer = attached.consumer
        for one in body.handed_out:
            if len(one.ack_set) <= ACK_WORDS_MAX:
                consumer.handed_out(position_of(one), mask_of(tuple(one.ack_set)))
        if body.messagePermits:
            permits = min(body.messagePermits, PERMITS_MAX - max(consumer.permits, 0))
            attached.subscription.flow(consumer, permits)

    def _ack(self, body: Any, frame: Frame) -> None:
        attached = self._attached.get(body.consumer_id)
        if attached is None:
            return
        ids = body.message_id
        if body.txnid_most_bits or body.txnid_least_bits:
            self._ack_refused(body, NotAllowed("transactions are not supported"))
            return
        if body.ack_type == body.Cumulative:
            if len(ids) != 1:
                self._ack_refused(body, NotAllowed("a cumulative acknowledgement names exactly one message"))
                return
            attached.subscription.ack_cumulative(attached.consumer, position_of(ids[0]), tuple(ids[0].ack_set))
        else:
            acks = [(position_of(one), tuple(one.ack_set), max(one.batch_size, 0)) for one in ids]
            attached.subscription.ack(attached.consumer, acks)
        self._after_ack(attached)
        if body.HasField("request_id"):
            attached.unconfirmed.append(body.request_id)
            if not attached.is_confirming:
                attached.is_confirming = True
                self._connection.tasks.spawn(self._confirm(attached, body.consumer_id), "ack receipts")

    def _after_ack(self, attached: Attached) -> None:
        topic, subscription = attached.topic, attached.subscription
        if (
            isinstance(topic, NonPersistentTopic)
            or isinstance(subscription, MemorySubscription)
            or not topic.log.is_terminated
        ):
            return
        if not subscription.cursor.has_backlog:
            subscription.notify_end_of_topic()

    def _ack_refused(self, body: Any, error: Error) -> None:
        if body.HasField("request_id"):
            self._connection.send(
                replies.ack_response(body.consumer_id, body.request_id, code=server_error(error), text=error.reason)
            )

    async def _confirm(self, attached: Attached, consumer_id: int) -> None:
        """One flush answers all acknowledgements before it, so a busy consumer needs few."""
        try:
            while attached.unconfirmed:
                requests, attached.unconfirmed = attached.unconfirmed, []
                failure: dict[str, Any] = {}
                try:
                    await attached.subscription.flush()
                except Error as error:
                    failure = {"code": server_error(error), "text": error.reason}
                self._connection.send(*(replies.ack_response(consumer_id, one, **failure) for one in requests))
        finally:
            attached.is_confirming = False

    def _redeliver(self, body: Any, frame: Frame) -> None:
        attached = self._attached.get(body.consumer_id)
        if attached is None:
            return
        ids, subscription = body.message_ids, attached.subscription
        if self._connection.nacks_messages and isinstance(subscription, Subscription):
            parts = [(position_of(one), tuple(one.ack_set), one.batch_size) for one in ids if one.ack_set]
            if parts:
                subscription.redeliver_parts(attached.consumer, parts)
                ids = [one for one in ids if not one.ack_set]
                if not ids:
                    return  # an empty list would stand for everything
        epoch = signed(body.consumer_epoch) if body.HasField("consumer_epoch") else -1
        subscription.redeliver(attached.consumer, [position_of(one) for one in ids], epoch if epoch >= 0 else None)

    # -- requests

    def _find(self, consumer_id: int) -> Attached:
        attached = self._attached.get(consumer_id)
        if attached is None:
            raise ClientMistake(f"consumer {consumer_id} is not known on this connection")
        return attached

    def _unsubscribe(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._do_unsubscribe(body), "unsubscribe")

    async def _do_unsubscribe(self, body: Any) -> None:
        attached = self._find(body.consumer_id)
        await self._connection.authorize(BaseCommand.UNSUBSCRIBE, attached.resource)
        try:
            await attached.topic.unsubscribe(attached.subscription.name, force=body.force, by=attached.consumer)
        except NotAllowed:
            raise  # never allowed: the consumer stays attached
        except Error as error:
            raise ClientMistake(error.reason) from error
        self._attached.pop(body.consumer_id, None)
        self._connection.send(replies.success(body.request_id))

    def _seek(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._do_seek(body), "seek")

    async def _do_seek(self, body: Any) -> None:
        attached = self._find(body.consumer_id)
        await self._connection.authorize(BaseCommand.SEEK, attached.resource)
        topic = attached.topic
        if isinstance(topic, NonPersistentTopic):
            raise NotAllowed("seek is not supported on a non-persistent topic")
        words: tuple[int, ...] = ()
        if body.HasField("message_id"):
            asked = position_of(body.message_id)
            position = topic.resolve(asked, attached.consumer.spec.read_compacted)
            words = tuple(body.message_id.ack_set) if position == asked else ()
        elif body.HasField("message_publish_time"):
            position = await topic.log.position_at_time(min(body.message_publish_time, (1 << 63) - 1))
        else:
            raise ClientMistake("SEEK names neither a message nor a time")
        await attached.subscription.seek(position, words)
        self._connection.send(replies.success(body.request_id))

    def _last_message_id(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._do_last_message_id(body), "last message id")

    async def _do_last_message_id(self, body: Any) -> None:
        attached = self._find(body.consumer_id)
        last, batch_index = await attached.topic.last_message(attached.consumer.spec.read_compacted)
        self._connection.send(
            replies.last_message_id(
                body.request_id,
                last,
                batch_index=batch_index,
                partition=attached.topic.partition,
                mark_delete=attached.subscription.mark_delete,
            )
        )

    def _stats(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._do_stats(body), "consumer stats")

    async def _do_stats(self, body: Any) -> None:
        attached = self._attached.get(body.consumer_id)
        if attached is None:
            error = ConsumerNotFound(f"consumer {body.consumer_id} is not known on this connection")
            self._connection.send(replies.consumer_stats_failed(body.request_id, server_error(error), error.reason))
            return
        consumer = attached.consumer
        seconds = max(1.0, (self._services.clock.now_ms() - consumer.connected_ms) / 1000)
        stats = replies.ConsumerStats(
            consumer_name=consumer.name,
            subscription_type=consumer.spec.type.label,
            address=self._connection.address,
            connected_since=datetime.fromtimestamp(consumer.connected_ms / 1000, UTC).isoformat(
                timespec="milliseconds"
            ),
            available_permits=consumer.permits,
            unacked_messages=consumer.unacked_messages,
            blocked_on_unacked=consumer.is_blocked,
            backlog=await attached.subscription.backlog_messages(),
            rate_out=consumer.messages_out / seconds,
            throughput_out=consumer.bytes_out / seconds,
            rate_redeliver=consumer.messages_redelivered / seconds,
            rate_ack=consumer.messages_acked / seconds,
        )
        self._connection.send(replies.consumer_stats(body.request_id, stats))

    # -- closing

    def _close(self, body: Any, frame: Frame) -> None:
        opening = self._opening.get(body.consumer_id)
        if opening is not None:
            opening.cancel()
        attached = self._attached.pop(body.consumer_id, None)
        if attached is not None:
            attached.detach()
            segment = segment_of(attached.topic)
            if segment is not None and not self._connection.extensions:
                segment.reader_left(attached.subscription.name, attached.consumer.name)
        self._connection.send(replies.success(body.request_id))

    def consumer_closed(self, consumer_id: int) -> None:
        self._attached.pop(consumer_id, None)

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        for consumer_id, attached in list(self._attached.items()):
            name = attached.topic.name
            if concerns(name, tenant, namespace):
                await self._check_again(consumer_id, attached)

    async def _check_again(self, consumer_id: int, attached: Attached) -> None:
        try:
            await self._connection.authorize(BaseCommand.SUBSCRIBE, attached.resource)
        except Error:  # also if the check failed: the client reconnects and is checked again
            if self._attached.get(consumer_id) is attached:
                attached.detach()
                self._connection.send(replies.close_consumer(consumer_id))
                self.consumer_closed(consumer_id)

    def writable(self) -> None:
        for attached in list(self._attached.values()):
            attached.subscription.pump()

    def closed(self) -> None:
        attached, self._attached = list(self._attached.values()), {}
        for one in attached:
            one.consumer.is_lost = True
            one.detach()


def _key_shared(body: Any) -> KeySharedPolicy:
    meta = body.keySharedMeta
    if int(meta.keySharedMode) != STICKY:
        return KeySharedPolicy((), meta.allowOutOfOrderDelivery)
    ranges = tuple((span.start, span.end) for span in meta.hashRanges)
    if not ranges:
        raise ConsumerAssignFailed("sticky Key_Shared needs hash ranges")
    if not meta.entryBucketDispatch:
        return KeySharedPolicy(ranges, meta.allowOutOfOrderDelivery)
    claim = _claim(body)
    if claim is None:
        raise ConsumerAssignFailed("dispatch by entry buckets needs an assignment of buckets by the topic's controller")
    try:
        EntryBuckets.of_ranges(ranges)
    except BadBuckets as error:
        raise ConsumerAssignFailed(error.reason) from error
    return KeySharedPolicy(ranges, claim=claim)


def _claim(body: Any) -> BucketClaim | None:
    """The entry buckets that SUBSCRIBE names; None without an assignment."""
    if not body.HasField("generation"):
        return None
    try:
        ring_hash = RingHash(body.ring_hash) if body.HasField("ring_hash") else RingHash.LOW16
    except ValueError as error:
        raise ConsumerAssignFailed(f"unknown ring hash {body.ring_hash!r}") from error
    return BucketClaim(body.generation, frozenset(body.buckets), ring_hash)
