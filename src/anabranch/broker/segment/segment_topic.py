"""One loaded segment: a topic that can be sealed, tells what is drained, and asks before it takes a new subscription.

It does what its owner's requests come to (`segment_owner`) and keeps what they must find again (`segment_facts`); it
knows neither who asks nor how. Between the decision to seal and its being durable, SENDs wait: they are answered when
the outcome is known, refused for the children or, if the seal failed, taken in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.close_notifications import CloseNotifications, notify_consumer_closed
from anabranch.broker.errors import ConsumerBusy, ConsumerFenced, SubscriptionNotFound
from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.sequence_ids import STATE, Sequences
from anabranch.broker.segment.key_range_check import KeyRangeCheck
from anabranch.broker.segment.pending_cursors import PendingCursors
from anabranch.broker.segment.segment_state import BLOB, OwnedSegmentState, SealNote, tombstone_properties
from anabranch.broker.subscription.consumer import Consumer, ConsumerSpec, SubscribeRequest
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.controller.segment_host import (
    CursorMissing,
    CursorSpec,
    Drained,
    HostEvent,
    Moved,
    ReaderLeft,
    Refilled,
    SealFacts,
    SegmentRef,
    Start,
    Status,
    SubscriptionSeen,
)
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol import replies
from anabranch.protocol.server_errors import ServerError, refusal_code
from anabranch.storage.cursor.cursor import Cursor

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.2

TellSealed = Callable[[Producer, "SegmentTopic"], None]
"""Tell one producer of our own kind where to go on."""


class SegmentTopic(Topic):
    state: OwnedSegmentState  # from `load` on
    on_event: Callable[[HostEvent], None] | None = None  # told what is durable
    tell_sealed: TellSealed | None = None

    async def load(self, deduplicate: bool) -> None:
        self.state = OwnedSegmentState.load(self.name, self.log.properties, self.log.state(BLOB))
        if deduplicate and self.log.epoch == 1 and not self.log.state(STATE):
            # New and empty: written with its first cursors, before anybody is told that it is there.
            self.log.save_state_nowait(STATE, Sequences().dump(self.log.last_position))
        await super().load(deduplicate)
        self._awaited = PendingCursors(self._clock)
        self._moving: dict[str, str] = {}  # subscription -> the operation that moves it now
        self._unproven: dict[Producer, KeyRangeCheck] = {}  # producers whose first entries are looked at
        self.log.held_behind = self.state.hold
        if self.log.is_terminated:
            self._look_again(self.subscriptions)

    def save_segment_state(self) -> None:
        """With the next flush of the state."""
        self.log.save_state_nowait(BLOB, self.state.dump())

    async def flush_segment_state(self) -> None:
        self._check_open()
        self.save_segment_state()
        await self.log.flush_state()

    # -- producing

    def prove(self, producer: Producer, proof: KeyRangeCheck) -> None:
        """Its first entries are looked at; nothing is, once they fit."""
        self._unproven[producer] = proof

    def publish_run(self, producer: Producer, publishes: Sequence[Publish]) -> None:
        if producer in self._unproven:
            publishes = self._proven(producer, publishes)
        if publishes:
            super().publish_run(producer, publishes)

    def _proven(self, producer: Producer, publishes: Sequence[Publish]) -> list[Publish]:
        """Those that may be stored; the others are refused, and what follows them as well."""
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

    def remove_producer(self, producer: Producer) -> None:
        self._unproven.pop(producer, None)
        super().remove_producer(producer)

    # -- sealing

    async def seal(self, operation: str, children: tuple[SegmentRef, ...]) -> SealFacts:
        """Final when this returns, or at once when it was sealed before; the answer is the same ever after."""
        self._check_open()
        if self.log.is_terminated:
            await self.flush_segment_state()
        else:
            await self._end(operation, children)
        note = self.state.sealed
        assert note is not None, "a segment is terminated by its seal alone"
        return SealFacts(self.log.last_position, note.at_ms, note.operation, self.last_sequences())

    async def _end(self, operation: str, children: tuple[SegmentRef, ...]) -> None:
        state = self.state

        def ended() -> Mapping[str, str]:
            state.sealed = SealNote(self._clock.now_ms(), operation, children)
            return state.identity()

        self.publisher.is_paused = True
        try:
            await self.log.terminate(ended)  # what is in flight is settled first, and answered
        except BaseException:
            state.sealed = None
            self.publisher.is_paused = False
            for producer in list(self.producers.values()):
                self.publisher.release(producer)
            raise
        self.publisher.is_paused = False
        self.publisher.snapshot()
        self.topic_producers.close_all(notify=self._tell_sealed)
        self._unproven.clear()
        for subscription in self.subscriptions.values():
            if not subscription.cursor.has_backlog:
                subscription.notify_end_of_topic()
        for subscription in self.subscriptions.values():
            subscription.on_moved = self._moved
        self._look_again(self.subscriptions)

    def _tell_sealed(self, producer: Producer) -> None:
        if producer.grants_credits and self.tell_sealed is not None:
            self.tell_sealed(producer, self)
            return
        while producer.pending:
            producer.refuse(producer.pending.popleft(), ServerError.TopicTerminatedError, "the segment is sealed")
        producer.peer.send(replies.close_producer(producer.producer_id))

    def last_sequences(self) -> tuple[tuple[str, int], ...]:
        return self.deduplication.last_sequences()

    # -- cursors

    def status(self) -> Status:
        note = self.state.sealed
        sealed = None
        if note is not None:
            sealed = SealFacts(self.log.last_position, note.at_ms, note.operation, self.last_sequences())
        return Status(True, sealed, frozenset(self._durable()), self.state.drained & self._present())

    def _durable(self) -> Iterable[str]:
        return (name for name, one in self.subscriptions.items() if one.is_durable)

    def _present(self) -> frozenset[tuple[str, int]]:
        return frozenset(
            (name, self.state.of(name).rewind_count) for name in self._durable() if name in self.state.cursors
        )

    async def add_cursors(self, specs: Iterable[CursorSpec]) -> None:
        """All with one durable write; cursors that exist stay where they are."""
        async with self.topic_subscriptions.changing:
            self._check_open()
            wanted = [spec for spec in specs if spec.subscription not in self.subscriptions]
            starts = {
                spec.subscription: self.resolve(LATEST if spec.start is Start.LATEST else EARLIEST) for spec in wanted
            }
            for spec in wanted:
                if spec.start is Start.FIRST:
                    state = self.state.of(spec.subscription)
                    state.is_undecided, state.born_at = True, self.log.last_position
            self.save_segment_state()
            await self.log.create_cursors(starts)
            self.topic_subscriptions.adopt(starts)
        if self.log.is_terminated:
            self._look_again(starts)
        for name in starts:
            self._awaited.made(name)

    def hold(self, group: str, position: Position | None) -> None:
        """What comes behind this is kept for a checkpoint group."""
        self.state.set_hold(group, position)
        self.log.held_behind = self.state.hold

    async def drop_cursor(self, name: str) -> None:
        self._check_open()
        self.state.cursors.pop(name, None)
        self.log.held_behind = self.state.hold
        self.save_segment_state()
        if name in self.subscriptions:
            await super().unsubscribe(name, force=True)
        else:
            await self.log.flush_state()

    # -- who may read (`controller.fence`)

    def close_readers(self, subscription: str, generation: int) -> None:
        """Assignments of lower generations are over; who came under one, or under none, is told to close."""
        if subscription in self.subscriptions:
            self.state.of(subscription).fence.raise_to(generation)
            self._close_fenced(subscription, include_unversioned=True)

    def grant_reader(self, subscription: str, member: str, generation: int) -> None:
        """The member, who says no generations, has it. Who had it before lets go by itself, or is closed."""
        if subscription in self.subscriptions:
            self.state.of(subscription).fence.raise_to(generation, member)
            self._close_fenced(subscription, include_unversioned=False)

    def _close_fenced(self, name: str, *, include_unversioned: bool) -> None:
        """Consumers that would not be let in any more; `include_unversioned`: those without a generation as well."""
        subscription = self.subscriptions[name]
        for consumer in tuple(subscription.consumers):
            if (include_unversioned or consumer.spec.grant is not None) and not self._admits(name, consumer.spec):
                subscription.detach(consumer)
                consumer.peer.consumer_closed(consumer.consumer_id)
                notify_consumer_closed(None, consumer.peer, consumer.consumer_id)

    def _admits(self, name: str, spec: ConsumerSpec) -> bool:
        state, grant = self.state.cursors.get(name), spec.grant
        if grant is not None and grant.incarnation != self.state.ref.incarnation:
            return False
        generation = None if grant is None else grant.generation
        return state is None or state.fence.admits(spec.name, self.state.ref.segment_id, generation)

    def _check_admitted(self, request: SubscribeRequest) -> None:
        """Raises ConsumerFenced; ConsumerBusy for clients without generations, who come again until it is theirs."""
        if self._admits(request.name, request.spec):
            return
        text = f"consumer {request.spec.name!r} does not have {self.state.ref}: it is, or will be, another's"
        raise ConsumerBusy(text) if request.spec.grant is None else ConsumerFenced(text)

    def _admit(self, request: SubscribeRequest) -> None:
        """Who comes under a higher generation ends what was let in under lower ones, here and now."""
        self._check_admitted(request)
        grant = request.spec.grant
        if grant is not None and self.state.of(request.name).fence.raise_to(grant.generation):
            self.save_segment_state()  # durable with the consumer's first ack at the latest
            self._close_fenced(request.name, include_unversioned=False)

    # -- moves, each once per operation

    async def clear_cursor(self, name: str, operation: str) -> None:
        """Behind the last entry. Consumers stay."""
        subscription = await self._movable(name)
        if not self.state.has_moved(name, operation):
            subscription.skip_to(self.log.last_position)
            self.state.note_move(name, operation)
            self._moved(subscription)
        await self.flush_segment_state()

    async def seek_cursor(self, name: str, operation: str, publish_ms: int, generation: int) -> Moved:
        """To the first entry published then or later. Who reads is closed, and is let in again under this generation or
        a higher one only: the fence is durable with the cursor."""
        subscription = await self._movable(name)
        position = await self.log.position_at_time(publish_ms)
        if generation:
            self.close_readers(name, generation)
        if self.state.has_moved(name, operation):
            await self.flush_segment_state()
        else:
            await self._seek(subscription, operation, position)
        state = self.state.of(name)
        return Moved(state.is_drained, state.rewind_count)

    async def _movable(self, name: str) -> Subscription:
        subscription = self.subscriptions.get(name)
        if subscription is None or not subscription.is_durable:
            await self.flush_segment_state()
            raise CursorMissing(f"{self.state.ref} has no cursor {name}")
        return subscription

    async def _seek(self, subscription: Subscription, operation: str, position: Position) -> None:
        name = subscription.name
        self._moving[name] = operation
        subscription.on_moved = self._moved
        try:
            await subscription.seek(position)
        finally:
            self._moving.pop(name, None)
            if not self.log.is_terminated:
                subscription.on_moved = None

    # -- drains

    def _subscription(self, name: str, cursor: Cursor) -> Subscription:
        made = super()._subscription(name, cursor)
        if self.log.is_terminated:
            made.on_moved = self._moved
        return made

    def _moved(self, subscription: Subscription) -> None:
        """Its cursor has moved: what that means is written with it, and told when it is durable."""
        operation = self._moving.pop(subscription.name, None)
        if operation is not None:
            self.state.note_move(subscription.name, operation)
        event = None
        if subscription.is_durable:
            event = self.state.update_drained(subscription.name, has_backlog=subscription.cursor.has_backlog)
        if event is not None or operation is not None:
            self.save_segment_state()
        if event is not None:
            self._tasks.spawn(self._tell(event), f"tell {type(event).__name__}")

    def _look_again(self, names: Iterable[str]) -> None:
        """What was told before the topic was opened may not have been heard: it is told again."""
        for subscription in [self.subscriptions[name] for name in names]:
            if not subscription.is_durable:
                continue
            state = self.state.cursors.get(subscription.name)
            if state is not None and state.is_drained and not subscription.cursor.has_backlog:
                self._tasks.spawn(
                    self._tell(Drained(self.state.ref, subscription.name, state.rewind_count)), "tell again"
                )
            else:
                self._moved(subscription)

    async def _tell(self, event: Drained | Refilled) -> None:
        """When it is durable; until then again and again."""
        while True:
            try:
                await self.log.flush_state()
                break
            except Error as error:
                log.warning("drain not written yet", extra={"topic": str(self.name), "reason": error.reason})
                await self._clock.sleep(AGAIN_SECONDS)
        self._emit(event)

    def _emit(self, event: HostEvent) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def reader_left(self, subscription: str, reader: str) -> None:
        """A consumer was closed by its client, one that does not speak with the controller itself."""
        self._emit(ReaderLeft(self.state.ref, subscription, reader))

    # -- subscribing

    async def subscribe(self, request: SubscribeRequest, peer: ClientConnection) -> tuple[Subscription, Consumer]:
        subscription, consumer = await super().subscribe(request, peer)
        try:
            if request.durable:
                self._check_admitted(request)  # it may have been replaced while it came in
        except (ConsumerBusy, ConsumerFenced):
            self.detach(subscription, consumer)
            raise
        return subscription, consumer

    async def _open_subscription(self, request: SubscribeRequest) -> Subscription:
        if request.durable and request.name not in self.subscriptions:
            await self._registered(request)
        if request.durable:
            await self._decide_start(request)
            self._admit(request)
        return await super()._open_subscription(request)

    async def _decide_start(self, request: SubscribeRequest) -> None:
        """Clients of Pulsar register without a start and say it here; everything was kept for them until now. They come
        to children when the parents are read: "latest" is when the subscription was made, not when that is."""
        subscription, state = self.subscriptions[request.name], self.state.cursors.get(request.name)
        if state is None or not state.is_undecided:
            return
        passed = self.log.last_position if state.born_at is None else state.born_at
        state.is_undecided, state.born_at = False, None
        if not request.from_earliest:
            subscription.skip_to(passed)  # what came since it was registered is its own, also on those not yet read
            self._moved(subscription)
        await self.flush_segment_state()

    async def _registered(self, request: SubscribeRequest) -> None:
        """The topic's registry decides, and makes the cursor on all segments; SubscriptionNotFound when it does not."""
        event = SubscriptionSeen(
            self.state.ref,
            request.name,
            request.spec.type.is_shared and not request.spec.key_shared.is_sticky,
            Start.EARLIEST if request.from_earliest else Start.LATEST,
        )

        def ask() -> None:
            self._check_open()
            self._emit(event)

        if not await self._awaited.wait(request.name, is_there=lambda: request.name in self.subscriptions, ask=ask):
            raise SubscriptionNotFound(f"subscription {request.name!r} is not registered with {self.name.scalable}")

    def deny_cursor(self, name: str, reason: str) -> None:
        """The registry does not make it, and will not."""
        self._awaited.denied(name, reason)

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str], *, durable: bool = True
    ) -> Subscription:
        """A durable one is the topic's, on all segments or on none."""
        if durable and name not in self.subscriptions:
            raise NotAllowed(f"subscriptions of {self.name.scalable} are made on the topic, not on {self.name}")
        return await super().create_subscription(name, start, properties, durable=durable)

    async def unsubscribe(self, name: str, *, force: bool, by: Consumer | None = None) -> None:
        """A durable one is the topic's: without its cursor here, and only here, it would miss what comes."""
        found = self.subscriptions.get(name)
        if found is not None and found.is_durable:
            raise NotAllowed(f"subscription {name!r} is deleted on {self.name.scalable}, not on {self.name}")
        await super().unsubscribe(name, force=force, by=by)

    # -- ending

    async def terminate(self) -> Position:
        raise NotAllowed(f"{self.name} is sealed by a split or merge of its topic, not by itself")

    async def close(self, *, notify_clients: bool = True, notifications: CloseNotifications | None = None) -> None:
        self._let_go()
        await super().close(notify_clients=notify_clients, notifications=notifications)

    async def _delete_log(self) -> None:
        self._let_go()
        await self.log.delete(tombstone_properties(self.state.fencing_token, self._clock.now_ms()))

    def _let_go(self) -> None:
        """Those who wait for a cursor find the topic closed."""
        self._fenced = True
        self._awaited.look_again()
