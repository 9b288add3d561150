"""One non-persistent topic: an entry goes to the consumers that are ready now and is dropped for all others.

It has the interface of `Topic` as far as commands need it, without log, cursor or redelivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.close_notifications import CloseNotifications, notify_consumer_closed, notify_producer_closed
from anabranch.broker.errors import ConsumerBusy, ProducerFenced, SubscriptionNotFound, TopicFenced
from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.producer_access import AccessTable, Admission
from anabranch.broker.publish.publish_rate_limiter import PublishRateLimiter
from anabranch.broker.publish.sequence_ids import Last
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.subscription.acknowledgement import Ack
from anabranch.broker.subscription.consumer import Consumer, ConsumerSpec, Departed, SubscribeRequest
from anabranch.broker.subscription.consumer_selectors import (
    HashRing,
    RoundRobin,
    SplitRanges,
    StickyRanges,
    failover_active,
)
from anabranch.broker.subscription.entry_metadata import slot_of
from anabranch.broker.topic.policy_limits import check_consumer, check_producer, check_subscription, refusal_of
from anabranch.broker.topic.takeover import free_exclusive_subscription, free_producer_name
from anabranch.broker.topic.topic_rate_limits import TopicRates
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol import replies
from anabranch.protocol.server_errors import refusal_code, server_error
from anabranch.runtime.clock import Clock
from anabranch.runtime.garbage import weak_call
from anabranch.storage.topic.topic_log import StoredEntry


class MemorySubscription:
    def __init__(
        self,
        name: str,
        spec: ConsumerSpec,
        partition: int,
        clock: Clock,
        mark_active: Callable[[], None],
        *,
        consistent_hashing: bool = True,
    ) -> None:
        self.name = name
        self._clock = clock
        self._mark_active = mark_active
        self.type = spec.type
        self.consumers: list[Consumer] = []
        self.departed = Departed()
        self.messages_dropped = 0
        self.is_durable = False
        self.seek_count = None
        self._partition = partition
        self._turns: RoundRobin[Consumer] = RoundRobin(lambda consumer: consumer.spec.priority)
        self._ring: HashRing[Consumer] | SplitRanges[Consumer] = HashRing() if consistent_hashing else SplitRanges()
        self._ranges: StickyRanges[Consumer] | None = StickyRanges() if spec.key_shared.is_sticky else None

    def attach(self, consumer: Consumer) -> None:
        if consumer.spec.type is not self.type:
            raise ConsumerBusy(f"subscription {self.name!r} is of type {self.type.label}")
        if self.type is SubscriptionType.EXCLUSIVE and self.consumers:
            raise ConsumerBusy("exclusive consumer is already connected")
        if self._ranges is not None:
            self._ranges.declare(consumer, consumer.spec.key_shared.ranges)
        before = self._active()
        self.consumers.append(consumer)
        self._changed()
        self._notify_active(before, consumer)

    def detach(self, consumer: Consumer) -> None:
        consumer.closed = True
        if consumer in self.consumers:
            before = self._active()
            self.consumers.remove(consumer)
            self.departed.add(consumer)
            if self._ranges is not None:
                self._ranges.leave(consumer)
            self._changed()
            self._notify_active(before, None)

    def _notify_active(self, before: Consumer | None, joined: Consumer | None) -> None:
        if self.type is SubscriptionType.FAILOVER:
            active = self._active()
            for member in self.consumers:
                if (active is not before or member is joined) and member.peer.protocol_version >= 12:
                    member.peer.send(replies.active_consumer_change(member.consumer_id, member is active))

    def _changed(self) -> None:
        self._turns.reset(self.consumers)
        self._ring.reset([(f"{c.name}/{c.peer.address}/{c.consumer_id}", c) for c in self.consumers])

    def _active(self) -> Consumer | None:
        return failover_active(self.consumers, self._partition, lambda c: c.spec.priority, lambda c: c.name)

    def deliver(self, entry: StoredEntry) -> None:
        match self.type:
            case SubscriptionType.SHARED:
                taker = self._turns.pick(lambda consumer: consumer.is_ready)
            case SubscriptionType.KEY_SHARED:
                slot = slot_of(entry)
                taker = self._ring.owner(slot) if self._ranges is None else self._ranges.owner(slot)
            case _:
                taker = self._active()
        if taker is None or not taker.is_ready:
            self.messages_dropped += entry.messages
            return
        taker.deliver(entry, 0, None)
        taker.settle(entry.position)

    # -- acknowledgement: without a cursor there is nothing to store

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        consumer.times.flowed(self._clock.now_ms())

    def pump(self) -> None:
        """No entry waits for dispatch."""

    def ack(self, consumer: Consumer, acks: Iterable[Ack]) -> None:
        self._mark_active()
        consumer.messages_acked += sum(1 for _ in acks)

    def ack_cumulative(self, consumer: Consumer, position: Position, words: tuple[int, ...]) -> None:
        self._mark_active()
        consumer.messages_acked += 1

    def redeliver(self, consumer: Consumer, positions: Sequence[Position], epoch: int | None) -> None:
        """Delivered entries are not stored."""

    async def flush(self) -> None:
        return

    async def backlog_messages(self) -> int:
        return 0

    async def seek(self, next_to_read: Position, words: tuple[int, ...] = ()) -> None:
        raise NotAllowed("seek is not supported on a non-persistent topic")

    @property
    def mark_delete(self) -> Position:
        return EARLIEST

    @property
    def is_blocked(self) -> bool:
        return False

    @property
    def replay_count(self) -> int:
        return 0

    @property
    def delayed_count(self) -> int:
        return 0

    @property
    def active_consumer(self) -> Consumer | None:
        return self._active() if self.type is not SubscriptionType.SHARED else None


class NonPersistentTopic:
    def __init__(
        self,
        name: TopicName,
        *,
        settings: BrokerSettings,
        clock: Clock,
        mark_active: Callable[[NonPersistentTopic], None],
    ) -> None:
        """`mark_active` is called for any activity."""
        self.name = name
        self.rests_until = 0.0  # no sweep needed before (`clock.monotonic`), unless there is activity
        self._on_active = mark_active
        self.subscriptions: dict[str, MemorySubscription] = {}
        self.producers: dict[str, Producer] = {}
        self.used_at = clock.monotonic()
        self.created_ms = clock.now_ms()
        self.messages_in = 0
        self.bytes_in = 0
        self._settings = settings
        self._clock = clock
        self._access: AccessTable[Producer] = AccessTable()
        self._next = 0
        self._fenced = False
        self._publish_limiter: PublishRateLimiter | None = None
        self.rates = TopicRates(clock, weak_call(self._release), weak_call(self._set_publish_limiter))
        self.policies = Policies.of({}, settings)

    async def apply(self, policies: Policies) -> None:
        """Apply limits, subscription types and rates; other policies concern storage."""
        self.policies = policies
        self.rates.apply(policies)

    def _mark_active(self) -> None:
        if not self._fenced:  # a closed topic must not return to the set of active ones
            self._on_active(self)

    def _set_publish_limiter(self, limiter: PublishRateLimiter | None) -> None:
        self._publish_limiter = limiter

    @property
    def partition(self) -> int:
        return self.name.partition_index

    @property
    def is_idle(self) -> bool:
        return not self.producers and not any(s.consumers for s in self.subscriptions.values())

    @property
    def waiting_producers(self) -> int:
        return len(self._access.waiting)

    @property
    def is_unused(self) -> bool:
        return not self.producers

    @property
    def is_closed(self) -> bool:
        return self._fenced

    def _check_open(self) -> None:
        if self._fenced:
            raise TopicFenced(f"{self.name} is being closed")
        self.used_at = self._clock.monotonic()

    def last_of(self, producer_name: str) -> Last:
        return Last()

    async def add_producer(self, producer: Producer, known_epoch: int | None) -> Admission[Producer]:
        self._check_open()
        await free_producer_name(self.producers, producer, self.remove_producer)
        self._check_open()
        check_producer(self.policies, len(self.producers), self.name)
        admission = self._access.admit(producer, producer.mode, known_epoch)
        self.producers[producer.name] = producer
        producer.is_ready = admission.ready
        for fenced in admission.fence:
            self._close_producer(fenced, ProducerFenced("another producer has taken the topic over"))
        return admission

    def remove_producer(self, producer: Producer) -> None:
        producer.closed = True
        producer.drop_pending()
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._client_left()
        waiting = self._access.leave(producer)
        if waiting is not None and not waiting.closed:
            waiting.is_ready = True
            waiting.peer.send(
                replies.producer_success(
                    waiting.request_id,
                    waiting.name,
                    schema_version=waiting.schema_version,
                    topic_epoch=self._access.epoch,
                )
            )

    def _client_left(self) -> None:
        """A producer or consumer left, perhaps the last one."""
        self.used_at = self._clock.monotonic()
        self._mark_active()

    def _close_producer(
        self, producer: Producer, reason: Error, notifications: CloseNotifications | None = None
    ) -> None:
        producer.closed = True
        producer.drop_pending()
        if producer.is_ready:
            notify_producer_closed(notifications, producer.peer, producer.producer_id)
        else:
            producer.peer.send(replies.error(producer.request_id, server_error(reason), reason.reason))
        producer.peer.producer_closed(producer.producer_id)
        self.producers.pop(producer.name, None)

    def publish_run(self, producer: Producer, publishes: Sequence[Publish]) -> None:
        for publish in publishes:
            self.publish(publish)

    def publish(self, publish: Publish) -> None:
        publish.producer.peer.add_pending_bytes(publish.size)
        if self.policies.message_bytes_max:
            refusal = refusal_of(self.policies, publish.payload, self._clock.now_ms())
            if refusal is not None:
                publish.producer.refuse(publish, refusal_code(publish.producer.peer.client_version), refusal)
                return
        if self._publish_limiter is None and not publish.producer.pending:
            self._deliver(publish)
        else:
            publish.producer.pending.append(publish)
            self._release(publish.producer)

    def _release(self, producer: Producer) -> None:
        pending, limiter = producer.pending, self._publish_limiter
        while pending and not producer.closed and (limiter is None or limiter.admits(pending[0])):
            self._deliver(pending.popleft())

    def _deliver(self, publish: Publish) -> None:
        position = Position(0, self._next)
        self._next += 1
        producer = publish.producer
        self._mark_active()
        producer.submitted(publish.size, publish.messages)
        self.messages_in += publish.messages
        self.bytes_in += publish.size
        entry = StoredEntry(position, publish.messages, publish.payload)
        for subscription in self.subscriptions.values():
            subscription.deliver(entry)
        producer.completed((publish,), position.ledger, position.entry)

    async def subscribe(self, request: SubscribeRequest, peer: ClientConnection) -> tuple[MemorySubscription, Consumer]:
        self._check_open()
        check_subscription(self.policies, request.spec.type, None, self.name)
        self.rates.check_subscribe(peer, request.spec)
        existing = self.subscriptions.get(request.name)
        if existing is not None and request.spec.type is SubscriptionType.EXCLUSIVE:
            await free_exclusive_subscription(existing.consumers, peer, lambda old: self.detach(existing, old))
            self._check_open()
        subscription = self.subscriptions.get(request.name)
        if subscription is None or (not subscription.consumers and subscription.type is not request.spec.type):
            if subscription is None:
                check_subscription(self.policies, None, len(self.subscriptions), self.name)
            subscription = MemorySubscription(
                request.name,
                request.spec,
                self.partition,
                self._clock,
                weak_call(self._mark_active),
                consistent_hashing=self._settings.key_shared_consistent_hashing,
            )
        attached = sum(len(one.consumers) for one in self.subscriptions.values())
        check_consumer(self.policies, attached, len(subscription.consumers), self.name)
        consumer = Consumer(peer, request.spec, 0, self._clock.now_ms())
        subscription.attach(consumer)
        self.subscriptions[request.name] = subscription
        return subscription, consumer

    def detach(self, subscription: MemorySubscription, consumer: Consumer) -> None:
        subscription.detach(consumer)
        self._client_left()
        if not subscription.consumers and self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    async def unsubscribe(self, name: str, *, force: bool, by: Consumer | None = None) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        if not force and any(consumer is not by for consumer in subscription.consumers):
            raise ConsumerBusy(f"subscription {name!r} has other consumers attached")
        for consumer in list(subscription.consumers):
            if consumer is not by:
                consumer.peer.send(replies.close_consumer(consumer.consumer_id))
                consumer.peer.consumer_closed(consumer.consumer_id)
            subscription.detach(consumer)
        self.subscriptions.pop(name, None)

    async def last_message(self, compacted: bool = False) -> tuple[Position, int]:
        return (Position(0, self._next - 1) if self._next else EARLIEST), -1

    async def close(self, *, notify_clients: bool = True, notifications: CloseNotifications | None = None) -> None:
        self._fenced = True
        self.rates.stop()
        for producer in list(self.producers.values()):
            if notify_clients:
                self._close_producer(producer, TopicFenced(f"{self.name} is being closed"), notifications)
        for subscription in self.subscriptions.values():
            for consumer in list(subscription.consumers):
                notify_consumer_closed(notifications, consumer.peer, consumer.consumer_id)
                consumer.peer.consumer_closed(consumer.consumer_id)
                subscription.detach(consumer)

    async def delete(self, *, force: bool) -> None:
        if not force and not self.is_idle:
            raise NotAllowed(f"{self.name} has connected producers or consumers")
        await self.close()
