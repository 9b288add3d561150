"""One subscription of a persistent topic: a cursor, its consumers, and the pump that reads for the dispatcher.

The dispatcher (pure) decides, `acknowledgement` (pure) defines the effect of an acknowledgement. This shell reads
entries from the log, checks who may acknowledge, and moves the cursor on seek.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.close_notifications import CloseNotifications, notify_consumer_closed
from anabranch.broker.errors import ConsumerBusy, TopicFenced
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.subscription.acknowledgement import Ack, ack_entry, skip_removed, skip_to
from anabranch.broker.subscription.compacted_cursor import CompactedAcks
from anabranch.broker.subscription.consumer import BucketClaim, Consumer, ConsumerSpec, Departed
from anabranch.broker.subscription.delayed_delivery import DelayedEntries, DelayTimer
from anabranch.broker.subscription.dispatch_rate_limiter import DispatchRateLimiter, first_entries
from anabranch.broker.subscription.dispatcher import Dispatcher, ReadForward, Want
from anabranch.broker.subscription.dispatcher_bucket import BucketDispatcher
from anabranch.broker.subscription.dispatcher_key_shared import KeyedDispatcher
from anabranch.broker.subscription.dispatcher_shared import SharedDispatcher
from anabranch.broker.subscription.dispatcher_single_active import SingleDispatcher
from anabranch.broker.subscription.entry_metadata import bucket_of, chunk_of, deliver_at_of, slot_of
from anabranch.broker.subscription.entry_reader import ReadableTopic, SubscriptionReader
from anabranch.broker.subscription.redelivery_counts import RedeliveryCounts
from anabranch.broker.token_bucket import Rate, RateLimiter
from anabranch.model.entry_buckets import EntryBuckets
from anabranch.model.errors import Error
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol import replies
from anabranch.runtime.clock import Clock
from anabranch.runtime.garbage import weak_call
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor.ack_state import mask_of
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.topic.topic_log import StoredEntry

log = get_logger(__name__)

ACK_WORDS_MAX = 1_024  # a batch of 65,536 messages
READ_RETRY_SECONDS = 0.2
STEP_READS = 4  # reads of a backlog in memory per pump; then the event loop gets a turn
NEVER_MS = 1 << 62


class Subscription:
    def __init__(
        self,
        name: str,
        cursor: Cursor,
        topic: ReadableTopic,
        *,
        partition: int,
        settings: BrokerSettings,
        clock: Clock,
        tasks: TaskOwner,
        mark_active: Callable[[], None],
    ) -> None:
        """`mark_active` is called when entries may be delivered or acknowledged, or the cursor moves."""
        self.name = name
        self._mark_active = mark_active
        self.cursor = cursor
        self.type: SubscriptionType | None = None
        self.departed = Departed()
        self.entries_expired = 0
        self.last_expired_ms = 0
        self.seek_count: int | None = None  # of a segment's subscription: how often its position was moved
        self.on_moved: Callable[[Subscription], None] | None = None  # called when the cursor moves
        self._topic = topic
        self._partition = partition
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._dispatcher: Dispatcher | None = None
        self._reading = False
        self._pumping = False
        self._fenced = False
        self._delayed = DelayedEntries(settings.delayed_max)
        self._redeliveries = RedeliveryCounts()
        self._delay_timer = DelayTimer(clock, weak_call(self._delay_over))
        self._delays = True
        self._reader = SubscriptionReader(topic, tasks, settings.read_bytes)
        self._unacked_max = settings.unacked_per_subscription_max
        self._own_limiter: RateLimiter | None = None  # without the topic's limit
        self._rate_limiter: DispatchRateLimiter | None = None

    def apply(self, policies: Policies, shared: RateLimiter | None = None) -> None:
        """Apply policies, also to attached consumers. `shared`: the rate limit of the topic."""
        self._set_rates(policies.dispatch_rate_of(self.name), shared)
        self._unacked_max = policies.unacked_per_subscription_max
        if isinstance(self._dispatcher, SharedDispatcher | KeyedDispatcher):
            self._dispatcher.unacked_max = self._unacked_max
        for consumer in self.consumers:
            consumer.unacked_max = policies.unacked_per_consumer_max
        if self._delays and not policies.delays and isinstance(self._dispatcher, SharedDispatcher | KeyedDispatcher):
            self._dispatcher.release(self._delayed.due(NEVER_MS))
        self._delays = policies.delays
        self.pump()

    def _set_rates(self, own: Rate, shared: RateLimiter | None) -> None:
        if not own.is_limited:
            self._own_limiter = None
        elif self._own_limiter is None or self._own_limiter.rate != own:
            self._own_limiter = RateLimiter(own, self._clock.monotonic())
        limiters = tuple(one for one in (self._own_limiter, shared) if one is not None)
        if self._rate_limiter is not None:
            if self._rate_limiter.limiters == limiters:
                return
            self._rate_limiter.close()
        self._reader.limit(None, None)
        self._rate_limiter = DispatchRateLimiter(limiters, self._clock, weak_call(self.pump)) if limiters else None

    @property
    def throttled_times(self) -> int:
        """How often delivery waited for this subscription's rate."""
        return 0 if self._own_limiter is None else self._own_limiter.times

    def _may_read(self, limiter: DispatchRateLimiter) -> bool:
        """Charge what was delivered, and limit the next read. False if delivery must wait."""
        consumers, departed = self.consumers, self.departed
        limiter.charge(
            departed.messages_out + sum(one.messages_out for one in consumers),
            departed.bytes_out + sum(one.bytes_out for one in consumers),
        )
        allowed = limiter.allowance()
        if allowed is None:
            return False
        self._reader.limit(allowed.messages, allowed.bytes)
        return True

    def _within(self, want: Want, entries: list[StoredEntry]) -> list[StoredEntry]:
        """The first entries, as far as the rate allows."""
        return first_entries(entries, self._reader.entries_max) if isinstance(want, ReadForward) else entries

    def _deliver_at(self, entry: StoredEntry) -> int:
        return deliver_at_of(entry) if self._delays else 0

    # -- members

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._dispatcher.consumers if self._dispatcher is not None else ()

    @property
    def is_durable(self) -> bool:
        return self.cursor.durable

    @property
    def active_consumer(self) -> Consumer | None:
        return self._dispatcher.active if isinstance(self._dispatcher, SingleDispatcher) else None

    @property
    def is_blocked(self) -> bool:
        """Whether all consumers together have too many unacknowledged messages."""
        return isinstance(self._dispatcher, SharedDispatcher | KeyedDispatcher) and self._dispatcher.is_blocked

    @property
    def key_shared(self) -> KeyedDispatcher | None:
        """Owners of the slots; None for other types, and without a consumer."""
        return self._dispatcher if isinstance(self._dispatcher, KeyedDispatcher) else None

    @property
    def delayed_count(self) -> int:
        return len(self._delayed)

    @property
    def replay_count(self) -> int:
        """Entries that wait for redelivery or for their key."""
        dispatcher = self._dispatcher
        return dispatcher.replay_count if isinstance(dispatcher, SharedDispatcher | KeyedDispatcher) else 0

    def attach(self, consumer: Consumer) -> None:
        """Attach a consumer. Raises ConsumerBusy or ConsumerAssignFailed."""
        if self._fenced:
            raise TopicFenced(f"subscription {self.name!r} is being closed or moved")
        spec = consumer.spec
        if self._dispatcher is None or not self._dispatcher.consumers:
            self._delayed.clear()
            self._redeliveries.forget_acked(self.cursor.is_acked)
            self._reader.discard()
            self._dispatcher = self._make_dispatcher(spec)
            self.type = spec.type
        elif spec.type is not self.type:
            raise ConsumerBusy(f"subscription {self.name!r} is of type {self.type.label if self.type else 'none'}")
        before = self.active_consumer
        self._dispatcher.join(consumer)
        if spec.type is SubscriptionType.FAILOVER:
            self._notify_active(before, consumer)

    def _make_dispatcher(self, spec: ConsumerSpec) -> Dispatcher:
        settings = self._settings
        match spec.type:
            case SubscriptionType.EXCLUSIVE | SubscriptionType.FAILOVER:
                self._reader.reads_compacted = spec.read_compacted
                acks = CompactedAcks(self.cursor, self._topic.log) if spec.read_compacted else self.cursor
                return SingleDispatcher(acks, spec.type, self._partition)
            case SubscriptionType.SHARED:
                return SharedDispatcher(
                    self.cursor,
                    unacked_max=self._unacked_max,
                    delayed=self._delayed,
                    deliver_at_of=self._deliver_at,
                    chunk_of=chunk_of,
                    now_ms=self._clock.now_ms,
                    redeliveries=self._redeliveries,
                )
            case SubscriptionType.KEY_SHARED if (claim := spec.key_shared.claim) is not None:
                buckets = EntryBuckets.of_ranges(spec.key_shared.ranges)
                return BucketDispatcher(
                    self.cursor,
                    buckets,
                    bucket_of=partial(bucket_of, buckets=buckets, ring_hash=claim.ring_hash),
                    unacked_max=self._unacked_max,
                    lookahead_max=settings.key_shared_lookahead_max,
                )
            case SubscriptionType.KEY_SHARED:
                return KeyedDispatcher(
                    self.cursor,
                    slot_of=slot_of,
                    delayed=self._delayed,
                    deliver_at_of=self._deliver_at,
                    now_ms=self._clock.now_ms,
                    sticky=spec.key_shared.is_sticky,
                    consistent_hashing=settings.key_shared_consistent_hashing,
                    allow_out_of_order=spec.key_shared.allow_out_of_order,
                    unacked_max=self._unacked_max,
                    lookahead_max=settings.key_shared_lookahead_max,
                )

    def claim(self, consumer: Consumer, claim: BucketClaim) -> None:
        """The buckets of an attached consumer have changed."""
        if isinstance(self._dispatcher, BucketDispatcher) and consumer in self._dispatcher.consumers:
            self._dispatcher.claim(consumer, claim.buckets, claim.generation)
            self.pump()

    def detach(self, consumer: Consumer) -> None:
        consumer.closed = True
        dispatcher = self._dispatcher
        if dispatcher is None or consumer not in dispatcher.consumers:
            return
        before = self.active_consumer
        dispatcher.leave(consumer)
        if not dispatcher.consumers:
            self._reader.discard()
        self.departed.add(consumer)
        if self.type is SubscriptionType.FAILOVER:
            self._notify_active(before, None)
        self.pump()

    def close_consumer(self, consumer: Consumer) -> None:
        self.detach(consumer)
        consumer.peer.consumer_closed(consumer.consumer_id)
        notify_consumer_closed(None, consumer.peer, consumer.consumer_id)

    def _notify_active(self, before: Consumer | None, joined: Consumer | None) -> None:
        active = self.active_consumer
        for consumer in self.consumers:
            if (active is not before or consumer is joined) and consumer.peer.protocol_version >= 12:
                consumer.peer.send(replies.active_consumer_change(consumer.consumer_id, consumer is active))

    def close_consumers(self, notifications: CloseNotifications | None = None) -> None:
        """Close every consumer: at once, or later by `notifications`."""
        consumers, self._dispatcher = list(self.consumers), None
        self._reader.discard()
        for consumer in consumers:
            consumer.closed = True
            self.departed.add(consumer)
            consumer.peer.consumer_closed(consumer.consumer_id)
            notify_consumer_closed(notifications, consumer.peer, consumer.consumer_id)

    # -- delivery

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        consumer.times.flowed(self._clock.now_ms())
        self.pump()

    def pump(self) -> None:
        """Deliver what can be delivered now; starts at most one disk read."""
        self._mark_active()
        dispatcher = self._dispatcher
        if dispatcher is None or self._reading or self._pumping or self._fenced:
            return
        self._pumping = True
        limiter, reads_max = self._rate_limiter, self._reader.resident_reads + STEP_READS
        try:
            if limiter is None or self._may_read(limiter):
                dispatcher.drain()
            while (limiter is None or self._may_read(limiter)) and (want := dispatcher.wants()) is not None:
                entries = self._reader.read_cached(want)
                if entries is None:
                    self._reading = True
                    self._tasks.spawn(self._read_or_fault(dispatcher, want), f"read {self.name}")
                    break
                if not entries and isinstance(want, ReadForward):
                    break
                dispatcher.offer(want, entries if limiter is None else self._within(want, entries))
                if self._reader.resident_reads >= reads_max:
                    self._clock.call_later(0.0, self.pump)
                    break
        except Exception:
            self._faulted()
        finally:
            self._pumping = False
        self._delay_timer.set(self._delayed.next_ms if self.consumers else None)

    def _faulted(self) -> None:
        """An internal error during dispatch: entries being delivered may be lost. All consumers are closed; they
        reconnect and receive everything unacknowledged. Other subscriptions are not affected."""
        log.exception("dispatch failed, consumers closed", extra={"subscription": self.name})
        self.close_consumers()

    async def _read(self, dispatcher: Dispatcher, want: Want) -> None:
        generation = dispatcher.generation
        try:
            entries = await self._reader.read(dispatcher, want)
        except Error as error:
            log.error("read failed, will be retried", extra={"subscription": self.name, "reason": error.reason})
            dispatcher.give_back(want)
            await self._clock.sleep(READ_RETRY_SECONDS)
        else:
            if dispatcher is self._dispatcher and generation == dispatcher.generation:
                dispatcher.offer(want, entries if self._rate_limiter is None else self._within(want, entries))
            # otherwise rewound meanwhile: the entries are read again
        finally:
            self._reading = False
        self.pump()

    async def _read_or_fault(self, dispatcher: Dispatcher, want: Want) -> None:
        try:
            await self._read(dispatcher, want)
        except Exception:
            self._faulted()

    def _delay_over(self) -> None:
        """The next delayed entry is due."""
        if isinstance(self._dispatcher, SharedDispatcher | KeyedDispatcher):
            self._dispatcher.release(self._delayed.due(self._clock.now_ms()))
            self.pump()

    # -- acknowledgement

    def ack(self, consumer: Consumer, acks: Iterable[Ack]) -> None:
        """Individual acknowledgements. Positions after the last entry are ignored: a cursor must not run ahead."""
        if consumer.closed:
            return  # its entries are redelivered to others
        self._mark_active()
        last, cursor, dispatcher = self._topic.log.last_position, self.cursor, self._dispatcher
        for position, words, batch_size in acks:
            if EARLIEST < position <= last and position.entry >= 0 and len(words) <= ACK_WORDS_MAX:
                ack_entry(cursor, dispatcher, consumer, position, words, batch_size)
        if self.on_moved is not None:
            self.on_moved(self)
        if self.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            self.pump()
        elif self._reader.reads_compacted and isinstance(dispatcher, SingleDispatcher):
            if (view := self._topic.log.compacted) is not None:
                skip_removed(cursor, dispatcher, consumer, view.horizon)

    def ack_cumulative(self, consumer: Consumer, position: Position, words: tuple[int, ...]) -> None:
        if consumer.closed or self.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            return
        self._mark_active()
        last = self._topic.log.last_position
        if position == LATEST or position > last:
            position, words = last, ()
        if position == EARLIEST or position.entry < 0 or len(words) > ACK_WORDS_MAX:
            return
        self.cursor.ack_cumulative(position, None, words or None)
        below = Position(position.ledger, position.entry - 1) if words else position
        consumer.messages_acked += consumer.settle_up_to(below)
        if self.on_moved is not None:
            self.on_moved(self)

    async def flush(self) -> None:
        """Returns when every acknowledgement made so far is durable."""
        await self.cursor.flush()

    async def backlog_messages(self) -> int:
        return await self.cursor.backlog_messages()

    @property
    def mark_delete(self) -> Position:
        return self.cursor.mark_delete

    def expire_up_to(self, position: Position) -> int:
        """`skip_to` because of TTL or a backlog quota."""
        expired = self.skip_to(position)
        if expired:
            self.entries_expired += expired
            self.last_expired_ms = self._clock.now_ms()
        return expired

    def skip_to(self, position: Position) -> int:
        """Acknowledge everything up to `position`. Returns the number of entries. Consumers stay attached."""
        if position <= self.cursor.mark_delete:
            return 0
        before = self.cursor.backlog_entries
        skip_to(self.cursor, self._dispatcher, position)
        self._redeliveries.forget_acked(self.cursor.is_acked)
        if self.on_moved is not None:
            self.on_moved(self)
        self.pump()
        return max(before - self.cursor.backlog_entries, 0)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position], epoch: int | None) -> None:
        """Redeliver these entries of the consumer; none are named: all of them."""
        if self._dispatcher is None:
            return
        if epoch is not None:
            consumer.epoch = max(epoch, consumer.epoch or 0)
        self._dispatcher.redeliver(consumer, positions or None)
        self.pump()

    def redeliver_parts(self, consumer: Consumer, parts: Iterable[Ack]) -> None:
        """Redeliver single messages of batches. On subscriptions that keep an order their entries are redelivered."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        for position, words, size in parts:
            if not words or len(words) > ACK_WORDS_MAX or not isinstance(dispatcher, SharedDispatcher):
                dispatcher.redeliver(consumer, [position])
            else:
                dispatcher.redeliver_part(consumer, position, mask_of(words), size)
        self.pump()

    # -- moving

    async def seek(self, next_to_read: Position, words: tuple[int, ...] = ()) -> None:
        """Move the cursor. Every consumer is closed, as in Pulsar; its pending entries are void."""
        if self._fenced:
            raise TopicFenced(f"subscription {self.name!r} is being moved by another seek")
        self._fenced = True
        try:
            self.close_consumers()
            self._mark_active()
            self.cursor.seek(next_to_read)
            self._redeliveries.clear()
            if words:
                self.cursor.ack(next_to_read, 0, words, 0)
            if self.on_moved is not None:
                self.on_moved(self)
            await self.cursor.flush()
        finally:
            self._fenced = False

    def fence(self, notifications: CloseNotifications | None = None) -> None:
        """Close all consumers and refuse new ones."""
        self._mark_active()
        self._fenced = True
        self.close_consumers(notifications)
        self._delay_timer.stop()
        if self._rate_limiter is not None:
            self._rate_limiter.close()

    def notify_end_of_topic(self, consumers: Iterable[Consumer] | None = None) -> None:
        """The topic is terminated and everything acknowledged: notify consumers that understand it."""
        for consumer in self.consumers if consumers is None else consumers:
            if consumer.peer.knows_end_of_topic and consumer.peer.protocol_version >= 9:
                consumer.peer.send(replies.reached_end_of_topic(consumer.consumer_id))
