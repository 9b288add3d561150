"""One segment of a scalable topic that this broker owns: a topic that is sealed by its controller and reports drains.

It performs the requests of `LocalSegments` and keeps what they must find again (`segment_state`). Between the decision
to seal and its durable write, SENDs wait. They are answered when the outcome is known: refused, so that the producer
goes on with the children, or stored in their order if the seal failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from anabranch.broker.errors import ConsumerBusy, ConsumerFenced, SubscriptionNotFound
from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.sequence_ids import STATE, Sequences
from anabranch.broker.segment.key_range_check import KeyRangeCheck
from anabranch.broker.segment.key_sampler import KeySampler
from anabranch.broker.segment.old_clients import check_follows
from anabranch.broker.segment.pending_cursors import PendingCursors
from anabranch.broker.segment.reader_fence import names_of
from anabranch.broker.segment.segment_state import BLOB, OwnedSegmentState, SealNote, tombstone_properties
from anabranch.broker.segment.unmetered import LOADED, Unmetered
from anabranch.broker.subscription.consumer import Consumer, ConsumerSpec, SubscribeRequest
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.controller.segment_host import (
    CursorMissing,
    CursorSpec,
    Drained,
    Moved,
    ReaderLeft,
    Refilled,
    SealFacts,
    Seek,
    SegmentRef,
    Start,
    Status,
    SubscriptionEvent,
    SubscriptionSeen,
)
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol import replies
from anabranch.protocol.server_errors import ServerError, refusal_code
from anabranch.runtime.clock import Clock
from anabranch.runtime.garbage import weak_call
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

AGAIN_SECONDS = 0.2


class SegmentListener(Protocol):
    """What a broker does for the segments that it owns."""

    def on_event(self, event: SubscriptionEvent) -> None:
        """Called when the event is durable."""

    def notify_sealed(self, producer: Producer, segment: OwnedSegment) -> None:
        """Tells a producer with our extensions which children follow the sealed segment, and where they are."""


class OwnedSegment:
    """The hooks of the segment's topic (`TopicHooks`), and the operations of its owner."""

    state: OwnedSegmentState  # from `before_load` on

    def __init__(self, topic: Topic, clock: Clock, listener: SegmentListener) -> None:
        self.topic = topic
        self.listener = listener
        self._clock = clock
        self._awaited = PendingCursors(clock)
        self._moving: dict[str, str] = {}  # subscription -> the operation that moves it now
        self._unproven: dict[Producer, KeyRangeCheck] = {}  # producers whose first entries are checked
        self.key_sampler: KeySampler | None = None  # set by the load reporter while the load by key matters
        self.unmetered: Unmetered | None = LOADED  # while the load reporter has no meter; None: it is not measured

    @property
    def name(self) -> TopicName:
        return self.topic.name

    def before_load(self, *, deduplicate: bool) -> None:
        topic_log = self.topic.log
        self.state = OwnedSegmentState.load(self.name, topic_log.properties, topic_log.state(BLOB))
        if deduplicate and topic_log.epoch == 1 and not topic_log.state(STATE):
            # New and empty: written with its first cursors, before the creation is answered.
            topic_log.save_state_nowait(STATE, Sequences().dump(topic_log.last_position))

    def after_load(self) -> None:
        self.topic.log.held_behind = self.state.hold
        if self.topic.log.is_terminated:
            self._look_again(self.topic.subscriptions)

    def save_segment_state(self) -> None:
        """Written with the next flush of the topic's state."""
        self.topic.log.save_state_nowait(BLOB, self.state.dump())

    async def flush_segment_state(self) -> None:
        self.topic.check_open()
        self.save_segment_state()
        await self.topic.log.flush_state()

    # -- producing

    def prove(self, producer: Producer, proof: KeyRangeCheck) -> None:
        """Checks the producer's first entries until `proof` is done."""
        self._unproven[producer] = proof

    def accept_publishes(self, producer: Producer, publishes: Sequence[Publish]) -> Sequence[Publish]:
        if producer in self._unproven:
            publishes = self._proven(producer, publishes)
        sampler = self.key_sampler
        if sampler is not None:
            sampler.left -= len(publishes)
            if sampler.left < 0:
                sampler.take(publishes)
        return publishes

    def _proven(self, producer: Producer, publishes: Sequence[Publish]) -> list[Publish]:
        """The publishes that may be stored. A refused publish and all that follow it are answered with the reason."""
        proof = self._unproven[producer]
        taken: list[Publish] = []
        for publish in publishes:
            complaint = "" if proof.is_done else proof.check(publish.payload)
            if complaint:
                producer.peer.add_pending_bytes(publish.size)
                producer.refuse(publish, refusal_code(producer.peer.client_version), complaint)
            else:
                taken.append(publish)
        if proof.is_done:
            del self._unproven[producer]
        return taken

    @property
    def is_adopted(self) -> bool:
        """Whether it is a regular topic's partition, adopted by a migration."""
        return self.name.domain is Domain.PERSISTENT

    def check_producer(self, producer: Producer) -> None:
        self._check_follows(producer.metadata)

    def _check_follows(self, metadata: Mapping[str, str]) -> None:
        check_follows(self.name, metadata, is_sealed=self.topic.log.is_terminated)

    def _check_consumer_follows(self, request: SubscribeRequest) -> None:
        """An ordered consumer of Pulsar's V5 client has no mark, but the controller has named it."""
        known = self.state.cursors.get(request.name)
        if known is None or not known.fence.is_holder(request.spec.name, self.state.ref.segment_id):
            self._check_follows(request.spec.metadata)

    def producer_removed(self, producer: Producer) -> None:
        self._unproven.pop(producer, None)

    # -- sealing

    async def seal(self, operation: str, children: tuple[SegmentRef, ...]) -> SealFacts:
        """Final when this returns. A repeated seal gets the same answer."""
        self.topic.check_open()
        if self.topic.log.is_terminated:
            await self.flush_segment_state()
        else:
            await self._end(operation, children)
        facts = self._seal_facts()
        assert facts is not None, "a segment is terminated by its seal alone"
        return facts

    def _seal_facts(self) -> SealFacts | None:
        if (note := self.state.sealed) is None:
            return None
        sequences = self.topic.deduplication.last_sequences()
        return SealFacts(self.topic.log.last_position, note.at_ms, note.operation, sequences)

    async def _end(self, operation: str, children: tuple[SegmentRef, ...]) -> None:
        state = self.state

        def ended() -> Mapping[str, str]:
            state.sealed = SealNote(self._clock.now_ms(), operation, children)
            return state.identity()

        try:
            await self.topic.terminate_with(ended, self._notify_sealed)
        except BaseException:
            if not self.topic.log.is_terminated:
                state.sealed = None
            raise
        self._unproven.clear()
        for subscription in self.topic.subscriptions.values():
            subscription.on_moved = weak_call(self._moved)
        self._look_again(self.topic.subscriptions)

    def _notify_sealed(self, producer: Producer) -> None:
        if producer.grants_credits:
            self.listener.notify_sealed(producer, self)
            return
        while producer.pending:
            producer.refuse(producer.pending.popleft(), ServerError.TopicTerminatedError, "the segment is sealed")
        producer.peer.send(replies.close_producer(producer.producer_id))

    # -- cursors

    def status(self) -> Status:
        return Status(True, self._seal_facts(), frozenset(self._durable()), self.state.drained & self._present())

    def _durable(self) -> Iterable[str]:
        return (name for name, one in self.topic.subscriptions.items() if one.is_durable)

    def _present(self) -> frozenset[tuple[str, int]]:
        known = (name for name in self._durable() if name in self.state.cursors)
        return frozenset((name, self.state.of(name).rewind_count) for name in known)

    async def add_cursors(self, specs: Iterable[CursorSpec]) -> None:
        """Creates missing cursors with one durable write; existing cursors do not move."""

        def starts_of() -> Mapping[str, Position]:
            wanted = [spec for spec in specs if spec.subscription not in self.topic.subscriptions]
            for spec in wanted:
                if self.is_adopted and not self.topic.log.is_terminated and spec.subscription not in self.state.made:
                    self.state.made.append(spec.subscription)
                if spec.start is Start.FIRST:
                    state = self.state.of(spec.subscription)
                    state.is_undecided, state.born_at = True, self.topic.log.last_position
            self.save_segment_state()
            resolve = self.topic.resolve
            return {spec.subscription: resolve(LATEST if spec.start is Start.LATEST else EARLIEST) for spec in wanted}

        starts = await self.topic.create_cursors(starts_of)
        if self.topic.log.is_terminated:
            self._look_again(starts)
        for name in starts:
            self._awaited.made(name)

    def hold(self, group: str, position: Position | None) -> None:
        """Retains the entries after `position` for a checkpoint group."""
        self.state.set_hold(group, position)
        self.topic.log.held_behind = self.state.hold

    async def drop_cursor(self, name: str) -> None:
        self.topic.check_open()
        self.state.cursors.pop(name, None)
        self.topic.log.held_behind = self.state.hold
        self.save_segment_state()
        if name in self.topic.subscriptions:
            await self.topic.drop_subscription(name)
        else:
            await self.topic.log.flush_state()

    # -- fencing of readers (`reader_fence`)

    def close_readers(self, subscription: str, generation: int, member: str = "") -> None:
        """Ends assignments of lower generations; closes consumers that attached under one or under none, but of those
        that share the segment only the member's, if one is named: the others get a new share."""
        if subscription in self.topic.subscriptions:
            self.state.of(subscription).fence.raise_to(generation)
            self._close_fenced(subscription, include_unversioned=True, sharers_of=member or None)

    def grant_reader(self, subscription: str, member: str, generation: int) -> None:
        """Gives the segment to a member that sends no generations. Consumers with a lower generation are closed."""
        if subscription in self.topic.subscriptions:
            self.state.of(subscription).fence.raise_to(generation, member)
            self._close_fenced(subscription, include_unversioned=False, sharers_of="")

    def _close_fenced(self, name: str, *, include_unversioned: bool, sharers_of: str | None) -> None:
        """Closes consumers that would be refused now, also those without a generation (`include_unversioned`); of those
        that share the segment only this member's (`sharers_of`; None: all)."""
        subscription = self.topic.subscriptions[name]
        for consumer in tuple(subscription.consumers):
            spec = consumer.spec
            if spec.key_shared.claim is None:
                concerned = include_unversioned or spec.grant is not None
            else:
                concerned = sharers_of is None or spec.name in names_of(sharers_of, self.state.ref.segment_id)
            if concerned and not self._admits(name, spec):
                subscription.close_consumer(consumer)

    def _admits(self, name: str, spec: ConsumerSpec) -> bool:
        state, grant, ref = self.state.cursors.get(name), spec.grant, self.state.ref
        if grant is not None and grant.incarnation != ref.incarnation:
            return False
        return state is None or state.fence.admits(spec.name, ref.segment_id, grant and grant.generation)

    def _check_admitted(self, request: SubscribeRequest) -> None:
        """Raises ConsumerFenced; ConsumerBusy for clients without generations, which retry until they get it."""
        if self._admits(request.name, request.spec):
            return
        text = f"consumer {request.spec.name!r} is not assigned to {self.state.ref}"
        raise ConsumerBusy(text) if request.spec.grant is None else ConsumerFenced(text)

    def _admit(self, request: SubscribeRequest) -> None:
        """A consumer with a higher generation closes those that were admitted under lower ones. One that shares the
        segment closes none: the others may have their shares since an earlier generation."""
        self._check_admitted(request)
        grant = request.spec.grant
        if grant is None or request.spec.key_shared.claim is not None:
            return
        if self.state.of(request.name).fence.raise_to(grant.generation):
            self.save_segment_state()  # durable with the consumer's first ack at the latest
            self._close_fenced(request.name, include_unversioned=False, sharers_of="")

    def check_claim(self, subscription: str, consumer: Consumer, generation: int) -> None:
        """An attached consumer has another share of the segment. Raises ConsumerFenced."""
        if not self.state.of(subscription).fence.admits(consumer.name, self.state.ref.segment_id, generation):
            raise ConsumerFenced(f"consumer {consumer.name!r} is not assigned to {self.state.ref}")

    # -- moves, each once per operation

    async def clear_cursor(self, name: str, operation: str) -> None:
        """Moves the cursor behind the last entry. Consumers stay attached."""
        subscription = await self._movable(name)
        if not self.state.has_moved(name, operation):
            subscription.skip_to(self.topic.log.last_position)
            self.state.note_move(name, operation)
            self._moved(subscription)
        await self.flush_segment_state()

    async def seek_cursor(self, request: Seek) -> Moved:
        """Moves the cursor. Consumers are closed, and admitted again only under this generation or a higher one: the
        fence is durable with the cursor."""
        name = request.subscription
        subscription = await self._movable(name)
        position, unread = await self._target(request)
        if request.generation:
            self.close_readers(name, request.generation)
        if self.state.has_moved(name, request.operation):
            await self.flush_segment_state()
        else:
            await self._seek(subscription, request.operation, position, unread)
        state = self.state.of(name)
        return Moved(state.is_drained, state.rewind_count)

    async def _movable(self, name: str) -> Subscription:
        subscription = self.topic.subscriptions.get(name)
        if subscription is None or not subscription.is_durable:
            await self.flush_segment_state()
            raise CursorMissing(f"{self.state.ref} has no cursor {name}")
        return subscription

    async def _target(self, request: Seek) -> tuple[Position, tuple[int, ...]]:
        """The next entry to read, and the bits of the messages in its batch that are unread (empty: all)."""
        if request.after is None:
            return await self.topic.log.position_at_time(request.publish_ms), ()
        asked = request.after if request.unread else self.topic.log.after(request.after)
        position = self.topic.resolve(asked)
        return position, request.unread if position == asked else ()

    async def _seek(
        self, subscription: Subscription, operation: str, position: Position, unread: tuple[int, ...]
    ) -> None:
        name = subscription.name
        self._moving[name] = operation
        subscription.on_moved = weak_call(self._moved)
        try:
            await subscription.seek(position, unread)
        finally:
            self._moving.pop(name, None)
            if not self.topic.log.is_terminated:
                subscription.on_moved = None

    # -- drains

    def subscription_made(self, subscription: Subscription) -> None:
        if subscription.is_durable:
            subscription.seek_count = self.state.seek_count(subscription.name)
        if self.topic.log.is_terminated:
            subscription.on_moved = weak_call(self._moved)

    def _moved(self, subscription: Subscription) -> None:
        """The cursor has moved: a change of its drained state is stored with it, and reported once durable."""
        operation = self._moving.pop(subscription.name, None)
        if operation is not None:
            self.state.note_move(subscription.name, operation)
            subscription.seek_count = self.state.note_seek(subscription.name)
        event = None
        if subscription.is_durable:
            event = self.state.update_drained(subscription.name, has_backlog=subscription.cursor.has_backlog)
        if event is not None or operation is not None:
            self.save_segment_state()
        if event is not None:
            self.topic.spawn(self._tell(event), f"tell {type(event).__name__}")

    def _look_again(self, names: Iterable[str]) -> None:
        """Reports the state of drained cursors again: an event sent before the topic was opened may be lost."""
        for subscription in [self.topic.subscriptions[name] for name in names]:
            if not subscription.is_durable:
                continue
            state = self.state.cursors.get(subscription.name)
            if state is not None and state.is_drained and not subscription.cursor.has_backlog:
                self.topic.spawn(
                    self._tell(Drained(self.state.ref, subscription.name, state.rewind_count)), "tell again"
                )
            else:
                self._moved(subscription)

    async def _tell(self, event: Drained | Refilled) -> None:
        """Reports the event once it is durable; retries the write until then."""
        while True:
            try:
                await self.topic.log.flush_state()
                break
            except Error as error:
                log.warning(
                    "drained cursor not stored yet, retrying", extra={"topic": str(self.name), "reason": error.reason}
                )
                await self._clock.sleep(AGAIN_SECONDS)
        self.listener.on_event(event)

    def reader_left(self, subscription: str, reader: str) -> None:
        """A client without our extensions closed its consumer; it has no session with the controller."""
        self.listener.on_event(ReaderLeft(self.state.ref, subscription, reader))

    # -- subscribing

    async def before_subscribe(self, request: SubscribeRequest) -> None:
        self._check_consumer_follows(request)
        self._check_incarnation(request.spec)
        if not request.durable:
            return
        if request.name not in self.topic.subscriptions:
            if not self.topic.policies.auto_create_subscriptions:
                raise SubscriptionNotFound(f"{self.name.scalable} has no subscription {request.name}")
            await self._registered(request)
        await self._decide_start(request)
        self._admit(request)

    def _check_incarnation(self, spec: ConsumerSpec) -> None:
        """Raises ConsumerFenced. Comes before everything else: a consumer of the deleted topic must not register its
        subscription with the topic that was created again, where it could start at the wrong position."""
        own = self.state.ref.incarnation
        if spec.incarnation not in (None, own):
            raise ConsumerFenced(f"{self.name.scalable} was created again: {self.name} is of incarnation {own}")

    def check_attached(self, request: SubscribeRequest) -> None:
        """The consumer may have been replaced while it was attached, or the topic may have become a segment."""
        self._check_consumer_follows(request)
        if request.durable:
            self._check_admitted(request)

    async def _decide_start(self, request: SubscribeRequest) -> None:
        """Clients of Pulsar register without a start position and send it here; all entries were retained until now.
        They attach to children after the parents are read, so "latest" means the time of the registration."""
        subscription, state = self.topic.subscriptions[request.name], self.state.cursors.get(request.name)
        if state is None or not state.is_undecided:
            return
        passed = self.topic.log.last_position if state.born_at is None else state.born_at
        state.is_undecided, state.born_at = False, None
        if not request.from_earliest:
            subscription.skip_to(passed)  # entries since the registration belong to it
            self._moved(subscription)
        await self.flush_segment_state()

    async def _registered(self, request: SubscribeRequest) -> None:
        """Waits until the topic's registry has created the cursor on all segments; SubscriptionNotFound."""
        spec, start = request.spec, Start.EARLIEST if request.from_earliest else Start.LATEST
        is_shared = spec.type.is_shared and not spec.key_shared.is_sticky
        event = SubscriptionSeen(self.state.ref, request.name, is_shared, start)

        def ask() -> None:
            self.topic.check_open()
            self.listener.on_event(event)

        if not await self._awaited.wait(
            request.name, is_there=lambda: request.name in self.topic.subscriptions, ask=ask
        ):
            raise SubscriptionNotFound(f"subscription {request.name!r} is not registered with {self.name.scalable}")

    def deny_cursor(self, name: str, reason: str) -> None:
        """The registry refuses the subscription."""
        self._awaited.denied(name, reason)

    def check_create_subscription(self, name: str, *, durable: bool) -> None:
        """A durable subscription exists on all segments of its topic or on none."""
        if durable and name not in self.topic.subscriptions:
            raise NotAllowed(f"create subscriptions on {self.name.scalable}, not on its segment {self.name}")

    def check_unsubscribe(self, name: str) -> None:
        """A durable subscription without a cursor on this segment would miss its messages."""
        found = self.topic.subscriptions.get(name)
        if found is not None and found.is_durable:
            raise NotAllowed(f"delete subscription {name!r} on {self.name.scalable}, not on its segment {self.name}")

    # -- ending

    def check_terminate(self) -> None:
        raise NotAllowed(f"{self.name} cannot be terminated: a segment is sealed by a split or merge of its topic")

    def closing(self) -> None:
        """Requests that wait for a cursor find the topic closed."""
        self._awaited.look_again()

    def tombstone(self) -> Mapping[str, str] | None:
        if self.is_adopted:
            return None  # a late request finds no plan for it
        return tombstone_properties(self.state.fencing_token, self._clock.now_ms())


def segment_of(topic: object) -> OwnedSegment | None:
    """The segment that a loaded topic is; None for a regular topic."""
    return topic.hooks if isinstance(topic, Topic) and isinstance(topic.hooks, OwnedSegment) else None
