"""Model of a broker for consumers, in memory. The real SDK connects to it on a simulated loop, and a test chooses at
which command a fault happens.

Segments store entries, cursors have individual acks, consumers have permits. There is one topic that may be split
once. Segments are assigned like Anabranch's controller does it, or like Apache Pulsar's (5.0.0-M1).

The model checks that no consumer grants more permits than its prefetch, and that at rest both sides agree on permits.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anabranch.client.connection.connection_state import command
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.replacement import plan_split, replaced, reserved
from anabranch.model.routing import RingHash, key_hash
from anabranch.model.segment import Seal, backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import U64_MASK, BaseCommand, frame_with_payload, read_command, signed
from anabranch.protocol.entry import build_batch
from anabranch.protocol.frames import MESSAGE_BYTES_MAX, FrameDecoder
from tests.support.in_memory.fake_broker import dag_of
from tests.support.in_memory.simulated_loop import SimulatedLoop

T = TypeVar("T")
TOPIC = TopicName.parse("topic://public/default/x")
KEYS = ("a", "b", "c", "d", "e")


@dataclass
class Stored:
    numbers: list[int]
    payload: bytes


@dataclass
class Store:
    """One segment. Its ledger has its number."""

    segment_id: int
    entries: list[Stored] = field(default_factory=list)
    is_sealed: bool = False
    acked: dict[str, dict[int, int]] = field(default_factory=dict)  # subscription: entry: bits of what is acknowledged

    def left(self, subscription: str, index: int) -> int:
        """Bits of what is not acknowledged of an entry."""
        every = (1 << len(self.entries[index].numbers)) - 1
        return every & ~self.acked.setdefault(subscription, {}).get(index, 0)

    def is_drained(self, subscription: str) -> bool:
        return self.is_sealed and not any(self.left(subscription, index) for index in range(len(self.entries)))


@dataclass
class Attached:
    """A consumer, as the broker has it."""

    connection: ModelConnection
    consumer_id: int
    store: Store
    subscription: str
    queue: list[int]  # entries to be sent
    is_durable: bool
    permits: int = 0
    is_told_end: bool = False
    counts: dict[int, int] = field(default_factory=dict)  # deliveries by entry
    parts: dict[int, int] = field(default_factory=dict)  # messages of entries that were returned singly


class ModelConnection(asyncio.Transport):
    """The broker's end of a connection. What is said in one turn of the loop arrives in the next."""

    def __init__(self, world: ConsumerWorld, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.world, self.protocol = world, protocol
        self.is_over = False
        self._decoder = FrameDecoder(MESSAGE_BYTES_MAX)
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._loop.call_soon(self._arrive, bytes(data))

    def _arrive(self, data: bytes) -> None:
        for one in self._decoder.feed(data):
            if not self.is_over:
                self.world.hear(self, *read_command(one.command))

    def send_command(self, kind: int, **fields: Any) -> None:
        self.send(command(kind, **fields))

    def send(self, data: bytes) -> None:
        self._loop.call_soon(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        while data and not self.is_over:
            buffer = memoryview(self.protocol.get_buffer(-1))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.protocol.buffer_updated(count)
            data = data[count:]

    def abort(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.world.gone(self)
            self._loop.call_soon(self.protocol.connection_lost, None)

    def close(self) -> None:
        self._loop.call_soon(self.abort)  # what was written before still arrives

    def is_closing(self) -> bool:
        return self.is_over

    def get_write_buffer_size(self) -> int:
        return 0


class ConsumerWorld:
    def __init__(self, *, is_ours: bool, prefetch: int, batch: int) -> None:
        self.is_ours = is_ours
        self.prefetch = prefetch
        self.batch = batch
        self.layout = Layout.initial(1, now_ms=0)
        self.stores = {0: Store(0)}
        self.published = 0
        self.attached: list[Attached] = []
        self.connections: list[ModelConnection] = []
        self.watches: dict[tuple[ModelConnection, int], None] = {}
        self.registrations: dict[tuple[ModelConnection, int], str] = {}
        self.producers: dict[tuple[ModelConnection, int], int] = {}  # and the segment of each
        self.generation = 1
        self.received = 0  # commands
        self.events: dict[int, list[Callable[[], None]]] = {}  # what happens before which command is looked at
        self.mishaps: list[dict[str, Any]] = []  # errors of tasks that are not awaited
        self.is_deaf_to_acks = False  # acks are taken, their answers lost

    # -- the topic

    def publish(self, count: int) -> None:
        """In batches, those of one segment together."""
        for _ in range(count):
            number, key = self.published, KEYS[self.published % len(KEYS)]
            self.published += 1
            segment = self.layout.at(RingHash.LOW16.ring_position(key_hash(key)))
            store = self.stores[segment.segment_id]
            if not store.entries or len(store.entries[-1].numbers) == self.batch or store.entries[-1].payload:
                store.entries.append(Stored([], b""))
            store.entries[-1].numbers.append(number)
        for store in self.stores.values():
            for index, entry in enumerate(store.entries):
                if not entry.payload:
                    self._finish(store, index, entry)

    def _finish(self, store: Store, index: int, entry: Stored) -> None:
        keys = [KEYS[number % len(KEYS)] for number in entry.numbers]
        entry.payload = build_batch([b"%d" % number for number in entry.numbers], keys=keys, publish_time=1)
        for one in self.attached:
            if one.store is store:
                one.queue.append(index)
        self.dispatch()

    def split(self) -> None:
        """The first segment is sealed; who is assigned what follows from the kind of controller."""
        plan = plan_split(self.layout, 0, ways=2, now_ms=1, limits=NO_LIMITS)
        last = Position(0, len(self.stores[0].entries) - 1)
        self.layout = replaced(reserved(self.layout, plan), plan, {0: Seal(2, last)})
        self.stores[0].is_sealed = True
        self.stores |= {one.segment_id: Store(one.segment_id) for one in plan.children}
        for connection, session_id in list(self.watches):
            self._tell_layout(connection, session_id)
        self.reassign()
        self._announce_ends()

    def _tell_layout(self, connection: ModelConnection, session_id: int) -> None:
        dag = dag_of(self.layout, **({"incarnation": 1} if self.is_ours else {}))
        if not self.is_ours:
            for segment in dag.segments:
                segment.ClearField("last_position")
        connection.send_command(
            BaseCommand.SCALABLE_TOPIC_UPDATE, session_id=session_id, dag=dag, resolved_topic_name=str(TOPIC)
        )

    def _assignment(self, subscription: str) -> pb.ScalableConsumerAssignment:
        drained = self.stores[0].is_drained(subscription)
        ids = [one for one in self.stores if not self.is_ours or one == 0 or drained]
        made = pb.ScalableConsumerAssignment(layout_epoch=self.layout.epoch)
        for one in ids:
            segment = self.layout[one]
            made.segments.add(
                segment_id=one,
                hash_start=segment.hash_range.start,
                hash_end=segment.hash_range.end,
                segment_topic=str(backing_topic(TOPIC, segment)),
            )
        if self.is_ours:
            made.generation, made.incarnation = self.generation, 1
        return made

    def reassign(self) -> None:
        self.generation += 1
        for (connection, consumer_id), subscription in list(self.registrations.items()):
            connection.send_command(
                BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE,
                consumer_id=consumer_id,
                assignment=self._assignment(subscription),
            )

    # -- troubles

    def cut(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def send_away(self, *, is_sparing_the_first: bool = False) -> None:
        """CLOSE_CONSUMER to everybody: segments that are unloaded."""
        for one in [one for one in self.attached if one.store.segment_id or not is_sparing_the_first]:
            self.attached.remove(one)
            one.connection.send_command(BaseCommand.CLOSE_CONSUMER, consumer_id=one.consumer_id, request_id=U64_MASK)

    def lose_answers(self) -> None:
        self.is_deaf_to_acks = True

    def gone(self, connection: ModelConnection) -> None:
        self.connections.remove(connection)
        self.attached = [one for one in self.attached if one.connection is not connection]
        self.watches = {key: None for key in self.watches if key[0] is not connection}
        self.registrations = {key: value for key, value in self.registrations.items() if key[0] is not connection}
        self.producers = {key: value for key, value in self.producers.items() if key[0] is not connection}

    # -- the wire

    def hear(self, connection: ModelConnection, kind: int, body: Any) -> None:
        self.received += 1
        for event in self.events.pop(self.received, ()):
            event()
        if connection.is_over:
            return
        name = BaseCommand.Type.Name(kind).lower()
        getattr(self, f"_{name}")(connection, body)

    def _connect(self, connection: ModelConnection, body: Any) -> None:
        features = pb.FeatureFlags(
            supports_scalable_topics=True, anabranch_extensions=self.is_ours, anabranch_message_nacks=self.is_ours
        )
        connection.send_command(
            BaseCommand.CONNECTED, server_version="model", protocol_version=21, feature_flags=features
        )

    def _ping(self, connection: ModelConnection, body: Any) -> None:
        connection.send_command(BaseCommand.PONG)

    def _lookup(self, connection: ModelConnection, body: Any) -> None:
        connection.send_command(
            BaseCommand.LOOKUP_RESPONSE,
            request_id=body.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
        )

    def _scalable_topic_lookup(self, connection: ModelConnection, body: Any) -> None:
        self.watches[connection, body.session_id] = None
        self._tell_layout(connection, body.session_id)

    def _scalable_topic_close(self, connection: ModelConnection, body: Any) -> None:
        self.watches.pop((connection, body.session_id), None)

    def _scalable_topic_subscribe(self, connection: ModelConnection, body: Any) -> None:
        self.registrations[connection, body.consumer_id] = body.subscription
        connection.send_command(
            BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
            request_id=body.request_id,
            assignment=self._assignment(body.subscription),
        )

    def _segment_release(self, connection: ModelConnection, body: Any) -> None:
        pass  # there is no other consumer

    def _scalable_topic_leave(self, connection: ModelConnection, body: Any) -> None:
        self.registrations.pop((connection, body.consumer_id), None)
        connection.send_command(BaseCommand.SUCCESS, request_id=body.request_id)

    def _subscribe(self, connection: ModelConnection, body: Any) -> None:
        store = self.stores[int(body.topic.rpartition("-")[2])]
        for one in self.attached:
            busy = one.store is store and one.subscription == body.subscription
            assert not busy, f"two consumers on segment {store.segment_id}: {one.connection is connection} {one} {body}"
        first = 0
        if not body.durable:
            at = Position(signed(body.start_message_id.ledgerId), signed(body.start_message_id.entryId))
            first = max(0, at.entry)  # inclusive: the client may have seen only a part of that batch
        queue = [index for index in range(first, len(store.entries)) if store.left(body.subscription, index)]
        self.attached.append(Attached(connection, body.consumer_id, store, body.subscription, queue, body.durable))
        connection.send_command(BaseCommand.SUCCESS, request_id=body.request_id)
        self._announce_ends()

    def _producer(self, connection: ModelConnection, body: Any) -> None:
        self.producers[connection, body.producer_id] = int(body.topic.rpartition("-")[2])
        connection.send_command(
            BaseCommand.PRODUCER_SUCCESS,
            request_id=body.request_id,
            producer_name=body.producer_name,
            last_sequence_id=-1,
        )

    def _send(self, connection: ModelConnection, body: Any) -> None:
        """Its receipt is all that counts here."""
        place = pb.MessageIdData(ledgerId=self.producers[connection, body.producer_id], entryId=body.sequence_id)
        connection.send_command(
            BaseCommand.SEND_RECEIPT, producer_id=body.producer_id, sequence_id=body.sequence_id, message_id=place
        )

    def _close_producer(self, connection: ModelConnection, body: Any) -> None:
        self.producers.pop((connection, body.producer_id), None)
        connection.send_command(BaseCommand.SUCCESS, request_id=body.request_id)

    def _close_consumer(self, connection: ModelConnection, body: Any) -> None:
        self.attached = [
            one for one in self.attached if not (one.connection is connection and one.consumer_id == body.consumer_id)
        ]
        connection.send_command(BaseCommand.SUCCESS, request_id=body.request_id)

    def _of(self, connection: ModelConnection, consumer_id: int) -> Attached | None:
        return next(
            (one for one in self.attached if one.connection is connection and one.consumer_id == consumer_id), None
        )

    def _flow(self, connection: ModelConnection, body: Any) -> None:
        if (one := self._of(connection, body.consumer_id)) is not None:
            one.permits += body.messagePermits
            assert one.permits <= self.prefetch, f"{one.permits} permits for a prefetch of {self.prefetch}"
            self.dispatch()

    def dispatch(self) -> None:
        for one in self.attached:
            while one.permits > 0 and one.queue:
                index = one.queue.pop(0)
                left = one.store.left(one.subscription, index) & one.parts.pop(index, -1)
                if left:
                    one.permits -= left.bit_count()
                    self._bring(one, index, left)

    def _bring(self, one: Attached, index: int, left: int) -> None:
        made = BaseCommand(type=BaseCommand.MESSAGE)
        made.message.consumer_id = one.consumer_id
        made.message.message_id.ledgerId, made.message.message_id.entryId = one.store.segment_id, index
        made.message.redelivery_count = one.counts.get(index, 0)
        one.counts[index] = one.counts.get(index, 0) + 1
        if left != (1 << len(one.store.entries[index].numbers)) - 1:
            made.message.ack_set.append(left)
        one.connection.send(frame_with_payload(made, one.store.entries[index].payload))

    def _ack(self, connection: ModelConnection, body: Any) -> None:
        if (one := self._of(connection, body.consumer_id)) is None:
            return
        acked = one.store.acked.setdefault(one.subscription, {})
        for identity in body.message_id:
            index = signed(identity.entryId)
            every = (1 << len(one.store.entries[index].numbers)) - 1
            if body.ack_type == pb.CommandAck.Cumulative:
                for before in range(index):
                    acked[before] = (1 << len(one.store.entries[before].numbers)) - 1
            left = identity.ack_set[0] if identity.ack_set else 0
            acked[index] = acked.get(index, 0) | (every & ~left)
        if not self.is_deaf_to_acks:
            connection.send_command(BaseCommand.ACK_RESPONSE, consumer_id=body.consumer_id, request_id=body.request_id)
        if one.store.is_drained(one.subscription) and self.is_ours:
            self.reassign()
        # M1 looks for the end before a cumulative ack has its effect.
        if self.is_ours or body.ack_type != pb.CommandAck.Cumulative:
            self._announce_ends()

    def _announce_ends(self) -> None:
        for one in self.attached:
            if one.is_durable and not one.is_told_end and one.store.is_drained(one.subscription):
                one.is_told_end = True
                one.connection.send_command(BaseCommand.REACHED_END_OF_TOPIC, consumer_id=one.consumer_id)

    def _redeliver_unacknowledged_messages(self, connection: ModelConnection, body: Any) -> None:
        if (one := self._of(connection, body.consumer_id)) is not None:
            for identity in body.message_ids:
                if identity.ack_set:
                    assert self.is_ours, "foreign brokers redeliver entries"
                    index = signed(identity.entryId)
                    one.parts[index] = one.parts.get(index, 0) | identity.ack_set[0]
            wanted = [signed(identity.entryId) for identity in body.message_ids]
            one.queue = [*wanted, *(index for index in one.queue if index not in wanted)]
            self.dispatch()

    def _get_last_message_id(self, connection: ModelConnection, body: Any) -> None:
        if (one := self._of(connection, body.consumer_id)) is None:
            connection.send_command(
                BaseCommand.ERROR, request_id=body.request_id, error=pb.MetadataError, message="no such consumer"
            )
            return
        index = len(one.store.entries) - 1
        last = pb.MessageIdData(ledgerId=one.store.segment_id if index >= 0 else U64_MASK, entryId=index & U64_MASK)
        connection.send_command(
            BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, last_message_id=last, request_id=body.request_id
        )


URL = "pulsar+ssl://model:1"
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""On paper only: what is encrypted is dialled by the loop, and this loop leads everybody to the world, in plain."""


class WiredLoop(SimulatedLoop):
    """Connects every dial to the model."""

    world: ConsumerWorld
    turns = 0
    at_turn: Callable[[int], None] | None = None  # called before each turn, with its number

    def _run_once(self) -> None:
        if self.at_turn is not None:
            self.turns += 1
            self.at_turn(self.turns)
        super()._run_once()  # type: ignore[misc]  # where every step of every task is taken

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Otherwise the error would be lost."""
        super().call_exception_handler(context)
        self.world.mishaps.append(context)

    async def create_connection(  # type: ignore[override]  # called in one way only
        self, factory: Callable[[], Any], *_: Any, ssl: Any = None, **__: Any
    ) -> tuple[Any, Any]:
        if ssl is None:  # the client asks whether a port that hung up has no TLS; it has
            raise ConnectionRefusedError("the model is a TLS port")
        protocol = factory()
        connection = ModelConnection(self.world, protocol)
        self.world.connections.append(connection)
        protocol.connection_made(connection)
        return connection, protocol

    def timers(self) -> list[asyncio.TimerHandle]:
        """What would still ring."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # there is no other way
        return [one for one in scheduled if not one.cancelled()]


def run_wired(world: ConsumerWorld, main: Coroutine[Any, Any, T]) -> T:
    def make() -> WiredLoop:
        loop = WiredLoop()
        loop.world = world
        return loop

    with asyncio.Runner(loop_factory=make) as runner:
        outcome = runner.run(main)
    assert not world.mishaps, world.mishaps
    return outcome
