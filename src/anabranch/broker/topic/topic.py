"""One loaded persistent topic: its log, its producers, its subscriptions.

It combines the parts of one topic. Dispatchers choose entries, `publisher` publishes them, the log stores them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.close_notifications import CloseNotifications
from anabranch.broker.errors import SubscriptionNotFound, TopicFenced, TopicTerminated
from anabranch.broker.publish.deduplication import Deduplication
from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.producer_access import Admission
from anabranch.broker.publish.publish_rate_limiter import PublishRateLimiter
from anabranch.broker.publish.publisher import Publisher
from anabranch.broker.publish.sequence_ids import Last
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.subscription.consumer import Consumer, SubscribeRequest
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.backlog_quota import bytes_after
from anabranch.broker.topic.compaction import Compactor, Status
from anabranch.broker.topic.housekeeping import Housekeeping
from anabranch.broker.topic.inactive_topics import is_eligible, should_delete
from anabranch.broker.topic.policy_limits import (
    check_consumer,
    check_producer,
    check_subscription,
    refusal_of,
)
from anabranch.broker.topic.position_resolver import PositionResolver
from anabranch.broker.topic.takeover import free_exclusive_subscription, free_producer_name
from anabranch.broker.topic.topic_hooks import NoTopicHooks, TopicHooks
from anabranch.broker.topic.topic_producers import NotifyProducer, TopicProducers, notify_reason
from anabranch.broker.topic.topic_rate_limits import TopicRates
from anabranch.broker.topic.topic_subscriptions import TopicSubscriptions
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.server_errors import refusal_code
from anabranch.runtime.clock import Clock
from anabranch.runtime.garbage import weak_call, weak_method
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.storage.topic.topic_log import TopicTerminated as LogTerminated

log = get_logger(__name__)


class _ReadableLog:
    """What subscriptions read, without a reference to the topic, which refers to them."""

    __slots__ = ("log",)

    def __init__(self, topic_log: TopicLog) -> None:
        self.log = topic_log

    def stable_position(self) -> Position:
        return self.log.last_position


class Topic:
    """Its parts refer to it weakly: a reference cycle would keep an unloaded topic in memory (`runtime.garbage`)."""

    def __init__(
        self,
        name: TopicName,
        topic_log: TopicLog,
        *,
        settings: BrokerSettings,
        clock: Clock,
        on_dirty: Callable[[Topic], None],
        check_writable: Callable[[], None],
        mark_active: Callable[[Topic], None],
        make_hooks: Callable[[Topic], TopicHooks] | None = None,
    ) -> None:
        """`mark_active` is called for any activity except a publish, which calls `on_dirty`. `make_hooks`: for a topic
        that is not a regular one."""
        self.name = name
        self.rests_until = 0.0  # no sweep needed before (`clock.monotonic`), unless there is activity
        self._on_active = mark_active
        self.log = topic_log
        self.used_at = clock.monotonic()
        self._settings = settings
        self._clock = clock
        self._on_dirty = on_dirty
        self._check_writable = check_writable
        self._tasks = TaskOwner(str(name))
        self._readable = _ReadableLog(topic_log)
        self.topic_subscriptions = TopicSubscriptions(
            topic_log, weak_method(self._subscription), self._tasks, weak_method(self.check_open)
        )
        self.subscriptions = self.topic_subscriptions.by_name
        self.publisher = Publisher(
            topic_log,
            None,
            snapshot_entries=settings.dedup_snapshot_entries,
            on_persisted=weak_call(self._persisted),
            on_failed=weak_call(self._failed),
            now=clock.monotonic,
        )
        self.policies = Policies.of({}, settings)
        self._checks_each = False  # each publish is checked: a longest delay, a largest message or a rate is set
        self.rates = TopicRates(clock, weak_call(self.publisher.release), weak_call(self._set_publish_limiter))
        self.deduplication = Deduplication(topic_log, self.publisher, settings.read_bytes, clock.monotonic())
        self.topic_producers = TopicProducers(str(name), topic_log, self._tasks, self.deduplication.last_of)
        self.producers = self.topic_producers.producers
        self.housekeeping = Housekeeping(self, topic_log, clock)
        self.compactor = Compactor(str(name), topic_log, clock)
        self.positions = PositionResolver(topic_log, clock)
        self._stored = topic_log.settings  # retention of the log without a namespace policy
        self._dirty = False
        self._fenced = False
        self._failing = False
        self.hooks: TopicHooks = NoTopicHooks() if make_hooks is None else make_hooks(self)

    async def load(self, deduplicate: bool) -> None:
        """Load persisted state: topic epoch, sequence ids, subscriptions."""
        self.hooks.before_load(deduplicate=deduplicate)
        self.topic_producers.load()
        self.topic_subscriptions.load()
        self.housekeeping.load()
        self.compactor.load()
        await self.deduplication.switch(deduplicate)
        self.hooks.after_load()

    async def apply(self, policies: Policies) -> None:
        """Apply policies, also to attached producers and consumers."""
        self.policies = policies
        self._mark_active()
        kept, stored = policies.retention, self._stored
        self.log.settings = (
            stored if kept is None else replace(stored, retention_ms=kept.time_ms, retention_bytes=kept.size_bytes)
        )
        self.rates.apply(policies)
        self._checks_each = bool(policies.delay_ms_max or policies.message_bytes_max) or self.rates.limits_publishing
        for subscription in self.subscriptions.values():
            subscription.apply(policies, self.rates.dispatch)
        await self.deduplication.switch(policies.deduplicate)
        if policies.compaction_threshold_bytes:
            await self.compactor.hold()
        await self.housekeeping.check_quota()

    def _mark_active(self) -> None:
        if not self._fenced:  # a closed topic must not return to the set of active ones
            self._on_active(self)

    def _set_publish_limiter(self, limiter: PublishRateLimiter | None) -> None:
        self.publisher.rate_limiter = limiter

    # -- state

    @property
    def partition(self) -> int:
        return self.name.partition_index

    @property
    def is_idle(self) -> bool:
        is_quiet = not self.producers and not self.topic_producers.waiting
        return is_quiet and not self.topic_subscriptions.consumer_count

    @property
    def is_eligible(self) -> bool:
        """Whether the rule for inactive topics would delete it after a long enough idle time."""
        return is_eligible(self.policies.inactive, len(self.subscriptions), self.topic_subscriptions.is_caught_up)

    @property
    def should_delete(self) -> bool:
        idle_seconds = self._clock.monotonic() - self.used_at
        return should_delete(
            self.policies.inactive, idle_seconds, len(self.subscriptions), self.topic_subscriptions.is_caught_up
        )

    @property
    def waiting_producers(self) -> int:
        return self.topic_producers.waiting

    @property
    def is_unused(self) -> bool:
        """Whether it has no producer and no entry: the first client decides its schema."""
        return not self.producers and not self.log.chain.entries

    @property
    def messages_in(self) -> int:
        return self.publisher.messages_in

    @property
    def bytes_in(self) -> int:
        return self.publisher.bytes_in

    def stable_position(self) -> Position:
        """Last entry that may be delivered. (Transactions will limit it.)"""
        return self._readable.stable_position()

    @property
    def is_closed(self) -> bool:
        """Whether it is being closed or deleted, or was."""
        return self._fenced

    def check_open(self) -> None:
        """Raises TopicFenced while the topic is being closed or deleted."""
        if self._fenced:
            raise TopicFenced(f"{self.name} is being closed")
        self.used_at = self._clock.monotonic()

    # -- producing

    def last_of(self, producer_name: str) -> Last:
        return self.deduplication.last_of(producer_name)

    async def add_producer(self, producer: Producer, known_epoch: int | None) -> Admission[Producer]:
        self.check_open()
        self.hooks.check_producer(producer)
        if self.log.is_terminated:
            raise TopicTerminated(f"{self.name} is terminated")
        self._check_writable()
        await self.housekeeping.check_not_blocked()
        await self.topic_producers.fence(producer)
        await free_producer_name(self.producers, producer, self.remove_producer)
        self.check_open()
        check_producer(self.policies, len(self.producers), self.name)
        admission = await self.topic_producers.add(producer, known_epoch)
        self.hooks.check_producer(producer)  # it may have become a segment meanwhile
        return admission

    def remove_producer(self, producer: Producer) -> None:
        self.used_at = self._clock.monotonic()
        self._mark_active()
        self.hooks.producer_removed(producer)
        self.topic_producers.remove(producer)

    def close_producers(self) -> None:
        self.topic_producers.close_all()

    def publish(self, publish: Publish) -> None:
        self.publish_run(publish.producer, (publish,))

    def publish_run(self, producer: Producer, publishes: Sequence[Publish]) -> None:
        """SENDs of one producer, in their order."""
        publishes = self.hooks.accept_publishes(producer, publishes)
        if not publishes:
            return
        if self._checks_each:
            for publish in publishes:
                self._publish_checked(publish)
        else:
            self.publisher.publish_run(producer, publishes)

    def _publish_checked(self, publish: Publish) -> None:
        refusal = refusal_of(self.policies, publish.payload, self._clock.now_ms())
        if refusal is not None:
            publish.producer.peer.add_pending_bytes(publish.size)
            publish.producer.refuse(publish, refusal_code(publish.producer.peer.client_version), refusal)
        else:
            self.publisher.publish_limited(publish)

    def _persisted(self) -> None:
        self._failing = False
        if not self._dirty:
            self._dirty = True
            self._on_dirty(self)

    def _failed(self, error: Error) -> None:
        """An append failed: every producer must reconnect and resend, in order, what has no receipt."""
        if isinstance(error, LogTerminated):  # the message met the termination of its topic
            log.debug("message refused, the topic is terminated", extra={"topic": str(self.name)})
        elif not self._failing:
            self._failing = True
            log.error("append failed, producers are closed", extra={"topic": str(self.name), "reason": error.reason})
        self.topic_producers.close_all(notify=partial(notify_reason, error))

    def dispatch(self) -> None:
        """Dispatch new entries; called at the end of a group commit."""
        self._dirty = False
        for subscription in self.subscriptions.values():
            subscription.pump()

    # -- consuming

    def _subscription(self, name: str, cursor: Cursor) -> Subscription:
        made = Subscription(
            name,
            cursor,
            self._readable,
            partition=self.partition,
            settings=self._settings,
            clock=self._clock,
            tasks=self._tasks,
            mark_active=weak_call(self._mark_active),
        )
        made.apply(self.policies, self.rates.dispatch)
        self.hooks.subscription_made(made)
        return made

    async def subscribe(self, request: SubscribeRequest, peer: ClientConnection) -> tuple[Subscription, Consumer]:
        self.check_open()
        spec = request.spec
        check_subscription(self.policies, spec.type, None, self.name)
        self.rates.check_subscribe(peer, spec)
        subscription = await self._open_subscription(request)
        consumer = Consumer(peer, spec, self.policies.unacked_per_consumer_max, self._clock.now_ms())
        if spec.type is SubscriptionType.EXCLUSIVE:
            await free_exclusive_subscription(subscription.consumers, peer, lambda old: self.detach(subscription, old))
        self.check_open()
        if self.subscriptions.get(request.name) is not subscription:
            raise TopicFenced(f"subscription {request.name!r} was closed meanwhile")
        check_consumer(self.policies, self.topic_subscriptions.consumer_count, len(subscription.consumers), self.name)
        subscription.attach(consumer)
        try:
            self.hooks.check_attached(request)
        except Error:
            self.detach(subscription, consumer)
            raise
        if request.durable:
            self.topic_subscriptions.note_type(request.name, is_shared=spec.type.is_shared)
        return subscription, consumer

    async def _open_subscription(self, request: SubscribeRequest) -> Subscription:
        await self.hooks.before_subscribe(request)
        found = self.subscriptions.get(request.name)
        if found is not None:
            if found.is_durable != request.durable:
                raise NotAllowed(f"subscription {request.name!r} is {'durable' if found.is_durable else 'not durable'}")
            if request.rollback_seconds and not found.consumers:
                await found.seek(await self.positions.ago(request.rollback_seconds))
            return found
        if request.durable and not (request.create and self.policies.auto_create_subscriptions):
            raise SubscriptionNotFound(f"subscription {request.name!r} does not exist")
        start = await self._start_of(request)
        return await self.create_subscription(request.name, start, request.properties, durable=request.durable)

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str], *, durable: bool = True
    ) -> Subscription:
        self.hooks.check_create_subscription(name, durable=durable)

        def check_room(known: int) -> None:
            check_subscription(self.policies, None, known, self.name)

        return await self.topic_subscriptions.create(name, start, properties, durable=durable, check_room=check_room)

    async def create_cursors(self, starts: Callable[[], Mapping[str, Position]]) -> Mapping[str, Position]:
        """Creates durable subscriptions with one write. `starts` is asked while no other cursor is created or deleted;
        what it saves in the topic's state is written with them."""
        async with self.topic_subscriptions.changing:
            self.check_open()
            found = starts()
            await self.log.create_cursors(found)
            self.topic_subscriptions.adopt(found)
        return found

    async def _start_of(self, request: SubscribeRequest) -> Position:
        if request.rollback_seconds:
            return await self.positions.ago(request.rollback_seconds)
        compacted = request.spec.read_compacted
        if not request.durable and request.start is not None:
            return self.resolve(request.start, compacted)
        return self.resolve(EARLIEST if request.durable and request.from_earliest else LATEST, compacted)

    def resolve(self, position: Position, compacted: bool = False) -> Position:
        """The next position to read for a position that a client names."""
        return self.positions.resolve(position, compacted)

    def detach(self, subscription: Subscription, consumer: Consumer) -> None:
        subscription.detach(consumer)
        self.used_at = self._clock.monotonic()
        self.topic_subscriptions.left(subscription)

    async def sweep(self) -> None:
        """Housekeeping, dedup snapshot, compaction and trimming; drops readers abandoned after a seek."""
        await self.topic_subscriptions.sweep()
        await self.housekeeping.run()
        self.deduplication.snapshot_when_due(self.policies.dedup_snapshot_seconds, self._clock.monotonic())
        threshold = self.policies.compaction_threshold_bytes
        if threshold and self._uncompacted_bytes() >= threshold and self.compactor.stats.status is not Status.RUNNING:
            self.compact()
        await self.log.trim()

    def resting_seconds(self) -> float:
        """Seconds until the next sweep is needed, if there is no activity."""
        if self.topic_subscriptions.has_abandoned or (
            self.policies.dedup_snapshot_seconds and self.publisher.has_unsaved
        ):
            return 0.0
        return self.housekeeping.resting_seconds()

    def compact(self) -> None:
        """Start a compaction; its state is in `compactor.stats`. Raises AlreadyRunning."""
        self.check_open()
        self.compactor.claim()
        self._tasks.spawn(self.compactor.run(), "compaction")

    def _uncompacted_bytes(self) -> int:
        view = self.log.compacted
        return bytes_after(self.log.chain, EARLIEST if view is None else view.horizon)

    async def unsubscribe(self, name: str, *, force: bool, by: Consumer | None = None) -> None:
        self.hooks.check_unsubscribe(name)
        await self.topic_subscriptions.remove(name, force=force, by=by)

    async def drop_subscription(self, name: str) -> None:
        """Deletes the subscription whatever the hooks say, and closes its consumers."""
        await self.topic_subscriptions.remove(name, force=True)

    async def last_message(self, compacted: bool = False) -> tuple[Position, int]:
        """Last position and, for a batch, the index of its last message (otherwise -1), in log or compacted view."""
        return await self.positions.last_message(self.stable_position(), compacted, self._settings.read_bytes)

    # -- ending

    async def terminate(self) -> Position:
        self.hooks.check_terminate()
        last = await self.log.terminate()
        self.close_producers()
        self._send_end_of_topic()
        return last

    async def terminate_with(self, properties: Callable[[], Mapping[str, str]], notify: NotifyProducer) -> None:
        """Terminates the log and writes `properties` with its end.

        Publishes wait until the outcome is known. Then every producer is closed by `notify`; after a failure the
        waiting publishes are taken in their order.
        """
        self.publisher.is_paused = True
        try:
            await self.log.terminate(properties)  # publishes in flight are completed and answered first
        except BaseException:
            self.publisher.is_paused = False
            for producer in list(self.producers.values()):
                self.publisher.release(producer)
            raise
        self.publisher.is_paused = False
        self.publisher.snapshot()
        self.topic_producers.close_all(notify=notify)
        self._send_end_of_topic()

    def _send_end_of_topic(self) -> None:
        for subscription in self.subscriptions.values():
            if not subscription.cursor.has_backlog:
                subscription.notify_end_of_topic()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """A task that ends with the topic."""
        self._tasks.spawn(work, name)

    async def close(self, *, notify_clients: bool = True, notifications: CloseNotifications | None = None) -> None:
        """Close clients (now, or later by `notifications`), persist state, close the log."""
        self._fenced = True
        self.hooks.closing()
        if notify_clients:
            self.topic_producers.close_all(notifications)
        for subscription in self.subscriptions.values():
            subscription.fence(notifications)
        self.rates.stop()
        try:
            await self._tasks.close()
            self.housekeeping.save()
            self.publisher.snapshot()
            await self.log.close()
        finally:
            self._drop_hooks()

    def check_unused(self) -> None:
        """Raises NotAllowed when a deletion without force is refused."""
        if not self.is_idle:
            raise NotAllowed(f"{self.name} has connected producers or consumers")
        if any(s.is_durable for s in self.subscriptions.values()):
            raise NotAllowed(f"{self.name} has subscriptions")

    async def delete(self, *, force: bool, when_fenced: Callable[[], Awaitable[None]] | None = None) -> None:
        """`when_fenced` runs after the topic is fenced and before its log is deleted."""
        if not force:
            self.check_unused()
        self._fenced = True
        self.hooks.closing()
        self.close_producers()
        for subscription in self.subscriptions.values():
            subscription.fence()
        self.rates.stop()
        try:
            await self._tasks.close()
            if when_fenced is not None:
                await when_fenced()
            await self.log.delete(self.hooks.tombstone())
        finally:
            self._drop_hooks()

    def _drop_hooks(self) -> None:
        """At the end: hooks refer to the topic, and callers that hold them still need it."""
        self.hooks = NoTopicHooks()
