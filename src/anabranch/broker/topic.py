"""One loaded persistent topic: its log, its producers, its subscriptions. Everything about *one* topic meets here;
how entries are chosen (dispatchers), published (`publisher`) and stored (log) is elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.broker.access import AccessTable, Admission
from anabranch.broker.compaction import CURSOR as COMPACTION_CURSOR
from anabranch.broker.compaction import Compactor, Status
from anabranch.broker.consumer import Consumer, ConsumerSpec, SubscriptionType
from anabranch.broker.dedup import Sequences, highest_of
from anabranch.broker.entryfacts import batch_size_of
from anabranch.broker.errors import (
    ConsumerBusy,
    ProducerFenced,
    SubscriptionNotFound,
    TopicFenced,
    TopicTerminated,
)
from anabranch.broker.inactive import is_doomed, is_eligible
from anabranch.broker.latency import Latencies
from anabranch.broker.limits import check_consumer, check_producer, check_subscription, too_long_delay
from anabranch.broker.peer import Peer
from anabranch.broker.policies import Policies
from anabranch.broker.producer import Producer, Publish
from anabranch.broker.publisher import Publisher
from anabranch.broker.quota import bytes_after
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.subscription import Subscription
from anabranch.broker.takeover import settle_exclusive, settle_name
from anabranch.broker.upkeep import Upkeep
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import TopicName
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol import entry as entries
from anabranch.protocol import replies
from anabranch.protocol.commands import signed
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.server_errors import refusal_code, server_error
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.cursor import Cursor
from anabranch.storage.topiclog import TopicLog

log = logging.getLogger(__name__)

REPLAY_ENTRIES = 1_000


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What SUBSCRIBE said about the subscription."""

    name: str
    spec: ConsumerSpec
    durable: bool
    from_earliest: bool
    start: Position | None  # non-durable only
    rollback_seconds: int
    create: bool
    properties: Mapping[str, str]


class Topic:
    def __init__(
        self,
        name: TopicName,
        topic_log: TopicLog,
        *,
        settings: BrokerSettings,
        clock: Clock,
        on_dirty: Callable[[Topic], None],
        check_writable: Callable[[], None],
    ) -> None:
        self.name = name
        self.log = topic_log
        self.subscriptions: dict[str, Subscription] = {}
        self.producers: dict[str, Producer] = {}
        self.used_at = clock.monotonic()
        self._settings = settings
        self._clock = clock
        self._on_dirty = on_dirty
        self._check_writable = check_writable
        self._tasks = TaskOwner(str(name))
        self._access: AccessTable[Producer] = AccessTable()
        self._publisher = Publisher(
            topic_log,
            None,
            snapshot_entries=settings.dedup_snapshot_entries,
            on_persisted=self._persisted,
            on_failed=self._failed,
            now=clock.monotonic,
        )
        self.policies = Policies.of({}, settings)
        self._upkeep = Upkeep(self, topic_log, clock)
        self.compactor = Compactor(str(name), topic_log, clock)
        self._stored = topic_log.settings  # how the log is kept where the namespace says nothing
        self._abandoned: set[str] = set()  # readers without a consumer, seen at the last sweep
        self._creating = asyncio.Lock()  # two first subscribers must get one cursor
        self._dirty = False
        self._fenced = False
        self._failing = False

    async def load(self, deduplicate: bool) -> None:
        """Bring back what outlives a restart: topic epoch, sequences, subscriptions."""
        epoch = self.log.state("topic-epoch")
        self._access.epoch = int(epoch) if epoch is not None else 0
        for name, cursor in self.log.cursors.items():
            if name != COMPACTION_CURSOR:
                self.subscriptions[name] = self._subscription(name, cursor)
        self._upkeep.load()
        self.compactor.load()
        await self.set_deduplication(deduplicate)

    async def apply(self, policies: Policies) -> None:
        """What holds from now on, for those who are connected too."""
        self.policies = policies
        kept, stored = policies.retention, self._stored
        self.log.settings = (
            stored if kept is None else replace(stored, retention_ms=kept.time_ms, retention_bytes=kept.size_bytes)
        )
        for subscription in self.subscriptions.values():
            subscription.apply(policies)
        await self.set_deduplication(policies.deduplicate)
        if policies.compaction_threshold_bytes:
            await self.compactor.hold()
        await self._upkeep.check_quota()

    async def set_deduplication(self, enabled: bool) -> None:
        """Switched on anew it knows nothing of the past; switched off it forgets."""
        saved = self.log.state("dedup")
        if not enabled:
            self._publisher.sequences = None
            if saved:
                await self.log.save_state("dedup", b"")
        elif self._publisher.sequences is None:
            if not saved:
                await self.log.save_state("dedup", Sequences().dump(self.log.last_position))
            self._publisher.sequences = await self._recover_sequences()

    async def _recover_sequences(self) -> Sequences:
        """The last snapshot, then whatever was written after it, up to the first hole.

        A power cut can tear the last group: an entry that was never confirmed is missing, a later one is there. Were
        the later one counted, the missing one would be taken for its duplicate when its producer sends it again.
        """
        sequences, upto = Sequences.load(self.log.state("dedup"))
        position = self.log.after(upto) if upto != EARLIEST else self.log.first_position
        while position <= (last := self.log.last_position):  # which grows while we read, when switched on in flight
            found = await self.log.read(position, REPLAY_ENTRIES, self._settings.read_bytes, last)
            if not found:
                break
            for stored in found:
                if stored.position != position:
                    log.warning("hole in the log, later sequences are not counted", extra={"topic": str(self.name)})
                    return sequences
                position = self.log.after(stored.position)
                try:
                    metadata = entries.metadata(stored.payload)
                except ProtocolError:
                    continue
                chunks = metadata.num_chunks_from_msg
                if chunks <= 1 or metadata.chunk_id == chunks - 1:
                    highest = highest_of(signed(metadata.sequence_id), signed(metadata.highest_sequence_id))
                    sequences.persist(metadata.producer_name, highest)
        return sequences

    # -- state

    @property
    def partition(self) -> int:
        return self.name.partition_index

    @property
    def is_idle(self) -> bool:
        return (
            not self.producers
            and not self._access.waiting
            and not any(s.consumers for s in self.subscriptions.values())
        )

    @property
    def is_eligible(self) -> bool:
        """Would the namespace's rule for inactive topics delete it, if it were idle for long enough?"""
        return is_eligible(self.policies.inactive, len(self.subscriptions), self._is_caught_up)

    @property
    def is_doomed(self) -> bool:
        idle_seconds = self._clock.monotonic() - self.used_at
        return is_doomed(self.policies.inactive, idle_seconds, len(self.subscriptions), self._is_caught_up)

    @property
    def _is_caught_up(self) -> bool:
        return not any(one.cursor.has_backlog for one in self.subscriptions.values())

    @property
    def waiting_producers(self) -> int:
        return len(self._access.waiting)

    @property
    def is_unused(self) -> bool:
        """Nobody produces and nothing is stored: whoever comes first says what will be in it."""
        return not self.producers and not self.log.chain.entries

    @property
    def messages_in(self) -> int:
        return self._publisher.messages_in

    @property
    def bytes_in(self) -> int:
        return self._publisher.bytes_in

    @property
    def latencies(self) -> Latencies:
        """How long publishes took, sampled."""
        return self._publisher.latencies

    @property
    def deduplicates(self) -> bool:
        return self._publisher.sequences is not None

    def stable_position(self) -> Position:
        """Last entry that may be delivered. (Transactions will hold it back.)"""
        return self.log.last_position

    def _check_open(self) -> None:
        if self._fenced:
            raise TopicFenced(f"{self.name} is being closed")
        self.used_at = self._clock.monotonic()

    # -- producing

    def last_sequence(self, producer_name: str) -> int:
        sequences = self._publisher.sequences
        return -1 if sequences is None else sequences.last(producer_name)

    async def add_producer(self, producer: Producer, known_epoch: int | None) -> Admission[Producer]:
        self._check_open()
        if self.log.is_terminated:
            raise TopicTerminated(f"{self.name} is terminated")
        self._check_writable()
        await self._upkeep.check_not_blocked()
        await settle_name(self.producers, producer, self.remove_producer)
        self._check_open()
        check_producer(self.policies, len(self.producers), self.name)
        before = self._access.epoch
        admission = self._access.admit(producer, producer.mode, known_epoch)
        self.producers[producer.name] = producer
        for fenced in admission.fence:
            self._close_producer(fenced, ProducerFenced("another producer has taken the topic over"))
        producer.is_ready = admission.ready
        if self._access.epoch != before:
            await self._save_epoch()
            if producer.closed:  # meanwhile
                if self._access.exclusive is not None:
                    raise ProducerFenced("another producer has taken the topic over")
                raise TopicFenced(f"{self.name} closed its producers")
        return admission

    async def _save_epoch(self) -> None:
        await self.log.save_state("topic-epoch", str(self._access.epoch).encode())

    def remove_producer(self, producer: Producer) -> None:
        producer.closed = True
        producer.drop_held()
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self.used_at = self._clock.monotonic()
        heir = self._access.leave(producer)
        if heir is not None:
            heir.is_ready = True
            self._tasks.spawn(self._crown(heir), "exclusive producer")

    async def _crown(self, heir: Producer) -> None:
        try:
            await self._save_epoch()
        except Error as error:
            log.warning("exclusive producer not let in", extra={"topic": str(self.name), "reason": error.reason})
            heir.is_ready = False
            self._close_producer(heir, error)
            self.remove_producer(heir)
            return
        if not heir.closed:
            credits = heir.grants_credits
            heir.peer.send(
                replies.producer_success(
                    heir.request_id,
                    heir.name,
                    last_sequence_id=self.last_sequence(heir.name),
                    schema_version=heir.schema_version,
                    topic_epoch=self._access.epoch,
                    credit_bytes=heir.window.bytes_max if credits else None,
                    credit_messages=heir.window.messages_max if credits else None,
                )
            )

    def _close_producer(self, producer: Producer, reason: Error) -> None:
        """Who still waits for its turn has nothing to close: its request is answered with the reason instead."""
        if producer.is_ready:
            producer.peer.send(replies.close_producer(producer.producer_id))
        else:
            producer.peer.send(replies.error(producer.request_id, server_error(reason), reason.reason))
        producer.peer.producer_closed(producer.producer_id)
        producer.closed = True
        producer.drop_held()
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def close_producers(self) -> None:
        waiting = [producer for producer in self._access.waiting if producer.name not in self.producers]
        reason = TopicFenced(f"{self.name} closed its producers")
        for producer in (*self.producers.values(), *waiting):
            self._close_producer(producer, reason)
        self._access.holders.clear()
        self._access.waiting.clear()
        self._access.exclusive = None

    def publish(self, publish: Publish) -> None:
        if self.policies.delay_ms_max and too_long_delay(self.policies, publish.payload, self._clock.now_ms()):
            publish.producer.peer.held(publish.size)
            text = f"Exceeds max allowed delivery delay of {self.policies.delay_ms_max} milliseconds"
            publish.producer.refuse(publish, refusal_code(publish.producer.peer.client_version), text)
            return
        self._publisher.publish(publish)

    def _persisted(self) -> None:
        self._failing = False
        if not self._dirty:
            self._dirty = True
            self._on_dirty(self)

    def _failed(self, error: Error) -> None:
        """An append was lost: every producer must come back and send again, in order, what has no receipt."""
        if not self._failing:
            self._failing = True
            log.error("append failed", extra={"topic": str(self.name), "reason": error.reason})
        self.close_producers()

    def dispatch(self) -> None:
        """At the end of a group: hand the new entries out."""
        self._dirty = False
        for subscription in self.subscriptions.values():
            subscription.pump()

    # -- consuming

    def _subscription(self, name: str, cursor: Cursor) -> Subscription:
        made = Subscription(
            name,
            cursor,
            self,
            partition=self.partition,
            settings=self._settings,
            clock=self._clock,
            tasks=self._tasks,
        )
        made.apply(self.policies)
        return made

    async def subscribe(self, request: SubscribeRequest, peer: Peer) -> tuple[Subscription, Consumer]:
        self._check_open()
        spec = request.spec
        check_subscription(self.policies, spec.type, None, self.name)
        subscription = await self._open_subscription(request)
        consumer = Consumer(peer, spec, self.policies.unacked_per_consumer_max, self._clock.now_ms())
        if spec.type is SubscriptionType.EXCLUSIVE:
            await settle_exclusive(subscription.consumers, peer, lambda old: self.detach(subscription, old))
        self._check_open()
        if self.subscriptions.get(request.name) is not subscription:
            raise TopicFenced(f"subscription {request.name!r} was closed meanwhile")
        attached = sum(len(one.consumers) for one in self.subscriptions.values())
        check_consumer(self.policies, attached, len(subscription.consumers), self.name)
        subscription.attach(consumer)
        return subscription, consumer

    async def _open_subscription(self, request: SubscribeRequest) -> Subscription:
        found = self.subscriptions.get(request.name)
        if found is not None:
            if found.is_durable != request.durable:
                raise NotAllowed(f"subscription {request.name!r} is {'durable' if found.is_durable else 'not durable'}")
            if request.rollback_seconds and not found.consumers:
                await found.seek(await self._rollback(request.rollback_seconds))
            return found
        if request.durable and not (request.create and self.policies.auto_create_subscriptions):
            raise SubscriptionNotFound(f"subscription {request.name!r} does not exist")
        start = await self._start_of(request)
        return await self.create_subscription(request.name, start, request.properties, durable=request.durable)

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str], *, durable: bool = True
    ) -> Subscription:
        if name == COMPACTION_CURSOR:
            raise NotAllowed(f"{name} is the name of the topic's own cursor")
        async with self._creating:
            self._check_open()
            if name not in self.subscriptions:
                known = sum(1 for one in self.subscriptions.values() if one.is_durable) if durable else 0
                check_subscription(self.policies, None, known if durable else None, self.name)
                await self.log.delete_cursor(name)  # of a reader that left a moment ago
                cursor = await self.log.create_cursor(name, start, properties, durable)
                self.subscriptions[name] = self._subscription(name, cursor)
            return self.subscriptions[name]

    async def _start_of(self, request: SubscribeRequest) -> Position:
        if request.rollback_seconds:
            return await self._rollback(request.rollback_seconds)
        compacted = request.spec.read_compacted
        if not request.durable and request.start is not None:
            return self.resolve(request.start, compacted)
        return self.resolve(EARLIEST if request.durable and request.from_earliest else LATEST, compacted)

    async def _rollback(self, seconds: int) -> Position:
        return await self.log.position_at_time(max(0, self._clock.now_ms() - seconds * 1000))

    def resolve(self, position: Position, compacted: bool = False) -> Position:
        """A concrete next-to-read position for what a client may name. The compacted view may begin before the log."""
        last, view = self.log.last_position, self.log.compacted
        if compacted and view is not None and position <= view.horizon:
            return Position(max(position.ledger, 0), max(position.entry, 0))
        if position == LATEST or position > last:
            return self.log.after(last)
        if position == EARLIEST or position < self.log.first_position:
            return self.log.first_position
        return Position(position.ledger, max(position.entry, 0))

    def detach(self, subscription: Subscription, consumer: Consumer) -> None:
        subscription.detach(consumer)
        self.used_at = self._clock.monotonic()
        if not subscription.is_durable and not subscription.consumers:
            if self.subscriptions.get(subscription.name) is subscription:
                del self.subscriptions[subscription.name]
                self._tasks.spawn(self._drop_cursor(subscription.name), f"drop reader {subscription.name}")

    async def _drop_cursor(self, name: str) -> None:
        """The cursor of a subscription that is gone; not when its name was taken again meanwhile."""
        async with self._creating:
            self._check_open()
            if name not in self.subscriptions:
                await self.log.delete_cursor(name)

    async def sweep(self) -> None:
        """Let the log drop what is consumed, and drop readers whose client did not come back after a seek."""
        lonely = {name for name, one in self.subscriptions.items() if not one.is_durable and not one.consumers}
        for name in lonely & self._abandoned:
            reader = self.subscriptions.get(name)  # others come and go while we wait
            if reader is not None and not reader.is_durable and not reader.consumers:
                del self.subscriptions[name]
                await self._drop_cursor(name)
        self._abandoned = lonely
        await self._upkeep.run()
        threshold = self.policies.compaction_threshold_bytes
        if threshold and self._uncompacted_bytes() >= threshold and self.compactor.stats.status is not Status.RUNNING:
            self.compact()
        await self.log.trim()

    def compact(self) -> None:
        """Begin; AlreadyRunning. How it goes is in `compactor.stats`."""
        self._check_open()
        self.compactor.claim()
        self._tasks.spawn(self.compactor.run(), "compaction")

    def _uncompacted_bytes(self) -> int:
        view = self.log.compacted
        return bytes_after(self.log.chain, EARLIEST if view is None else view.horizon)

    async def unsubscribe(self, name: str, *, force: bool, by: Consumer | None = None) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        if not force and any(consumer is not by for consumer in subscription.consumers):
            raise ConsumerBusy(f"subscription {name!r} has other consumers attached")
        if by is not None:
            subscription.detach(by)
        subscription.fence()
        del self.subscriptions[name]
        await self._drop_cursor(name)

    async def last_message(self, compacted: bool = False) -> tuple[Position, int]:
        """Last position and, for a batch, the index of its last message (else -1), of the log or the compacted view."""
        last, view = self.stable_position(), self.log.compacted
        if compacted and view is not None and view.horizon >= last:
            return view.row.last, view.row.last_index
        if last == EARLIEST or last < self.log.first_position:
            return (EARLIEST if last == EARLIEST else last), -1
        found = await self.log.read(last, 1, self._settings.read_bytes, last)
        if not found or found[0].position != last:
            return last, -1
        try:
            return last, batch_size_of(found[0].payload) - 1
        except ProtocolError:
            return last, -1

    # -- ending

    async def terminate(self) -> Position:
        last = await self.log.terminate()
        self.close_producers()
        for subscription in self.subscriptions.values():
            if not subscription.cursor.has_backlog:
                subscription.tell_end_of_topic()
        return last

    async def close(self, *, tell_clients: bool = True) -> None:
        """Everything durable, everybody told, the log given up."""
        self._fenced = True
        if tell_clients:
            self.close_producers()
        for subscription in self.subscriptions.values():
            subscription.fence()
        await self._tasks.close()
        self._upkeep.save()
        self._publisher.snapshot()
        await self.log.close()

    async def delete(self, *, force: bool, when_fenced: Callable[[], Awaitable[None]] | None = None) -> None:
        """`when_fenced`: what must go while nobody can come in."""
        if not force and not self.is_idle:
            raise NotAllowed(f"{self.name} has connected producers or consumers")
        if not force and any(s.is_durable for s in self.subscriptions.values()):
            raise NotAllowed(f"{self.name} has subscriptions")
        self._fenced = True
        self.close_producers()
        for subscription in self.subscriptions.values():
            subscription.fence()
        await self._tasks.close()
        if when_fenced is not None:
            await when_fenced()
        await self.log.delete()
