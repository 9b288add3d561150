"""Publishing without a connection, on the same path as SEND (rate limits, deduplication, durability).

`LocalPeer` takes the place of the connection: it reads the receipts and completes the futures of the caller.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.errors import NotOfThisKind, TopicTerminated
from anabranch.broker.publish.producer import Producer, Publish, Window
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.schemas.registry import version_bytes
from anabranch.broker.services import SERVER_VERSION, Services
from anabranch.controller.interface import ScalableTopics
from anabranch.interbroker.peer_calls import peer_call
from anabranch.model.errors import BadRequest, Error, NotAllowed, NotReady
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.routing import RoutingKind
from anabranch.model.schema import Schema, SchemaType
from anabranch.model.segment import Segment, backing_topic
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, read_command, signed
from anabranch.protocol.entry import seal_entry
from anabranch.protocol.frames import FrameDecoder
from anabranch.protocol.keyhash import murmur3_32
from anabranch.protocol.managed_clients import managed
from anabranch.runtime.net import Buffer

MESSAGES_MAX = 1_000
SEALS_MAX = 4  # seals of a message's segment that one call survives
SEALED = "the segment is sealed"
FRAME_BYTES_MAX = 1 << 20
TEXT_TYPES = (SchemaType.NONE, SchemaType.STRING, SchemaType.JSON)
"""Types whose payload is the text itself."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    payload: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0
    deliver_at_ms: int = 0

    def as_object(self) -> dict[str, Any]:
        """For another broker."""
        data = base64.b64encode(self.payload).decode()
        return {**asdict(self), "payload": data, "properties": dict(self.properties)}

    @classmethod
    def of_object(cls, value: Mapping[str, Any]) -> Outgoing:
        return cls(**{**value, "payload": base64.b64decode(value["payload"])})


@dataclass(frozen=True, slots=True)
class Published:
    """Position of each message, or why it was refused, and the version of their schema."""

    results: tuple[Position | str, ...]
    schema_version: int | None


class LocalPeer:
    """Stands in for the connection of one producer."""

    address = "local"
    client_version = SERVER_VERSION
    protocol_version = 21
    knows_end_of_topic = False
    is_open = True
    has_room = True

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[Position | str]] = {}
        self._frames = FrameDecoder(FRAME_BYTES_MAX)

    def expect(self, sequence: int) -> None:
        self.answers[sequence] = asyncio.get_running_loop().create_future()

    def send(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            for frame in self._frames.feed(buffer):
                kind, body = read_command(frame.command)
                if kind == BaseCommand.SEND_RECEIPT:
                    where = body.message_id
                    self._answer(body.sequence_id, Position(signed(where.ledgerId), signed(where.entryId)))
                elif kind == BaseCommand.SEND_ERROR:
                    self._answer(body.sequence_id, body.message)

    def send_run(self, buffers: list[Buffer], size: int) -> None:
        self.send(*buffers)

    def _answer(self, sequence: int, answer: Position | str) -> None:
        waiting = self.answers.get(sequence)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def is_alive(self) -> bool:
        return True

    def add_pending_bytes(self, size: int) -> None:
        """No backpressure: the caller publishes a bounded number of messages and waits."""

    def producer_closed(self, producer_id: int) -> None:
        for waiting in self.answers.values():
            if not waiting.done():
                waiting.set_exception(NotReady("the topic closed its producers; try again"))

    def consumer_closed(self, consumer_id: int) -> None:
        """It has no consumers."""


class PublishAdmin:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._routing = OwnerRouting(services)

    async def publish(
        self, topic: str, messages: Sequence[Outgoing], schema: Schema | None, producer_name: str
    ) -> Published:
        """Each message is durable or refused when it returns. The topic must exist."""
        services, name = self._services(), TopicName.parse(topic)
        if len(messages) > MESSAGES_MAX:
            raise BadRequest(f"at most {MESSAGES_MAX} messages at once")
        if await services.catalog.partitions(name):
            raise NotOfThisKind(f"{name} is partitioned: publish to one of its partitions")
        return await self._publish(name, messages, schema, producer_name, {})

    async def _publish(
        self,
        name: TopicName,
        messages: Sequence[Outgoing],
        schema: Schema | None,
        producer_name: str,
        metadata: Mapping[str, str],
    ) -> Published:
        found = await self._services().topics.get(name, create=False)
        version = await self._schema_version(name, schema)
        peer = LocalPeer()
        producer = self._producer(peer, name, producer_name, version, metadata)
        await found.add_producer(producer, None)
        try:
            for sequence, message in enumerate(messages):
                peer.expect(sequence)
                entry = self._entry(producer, sequence, message)
                found.publish(Publish(producer, sequence, 0, sequence, 1, entry, True))
            outcomes = await asyncio.gather(*peer.answers.values(), return_exceptions=True)
        finally:
            found.remove_producer(producer)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Error):
                raise outcome
        shown = tuple(one.reason if isinstance(one, Error) else one for one in outcomes)
        return Published(tuple(one for one in shown if not isinstance(one, BaseException)), version)

    async def publish_scalable(self, topic: str, messages: Sequence[Outgoing]) -> tuple[dict[str, Any], ...]:
        """Each message goes to the active segment of its key: `segment` and `messageId`, or why it was refused
        (`error`). One whose segment is sealed meanwhile goes to the segment that follows."""
        if len(messages) > MESSAGES_MAX:
            raise BadRequest(f"at most {MESSAGES_MAX} messages at once")
        name, left = TopicName.parse(topic), dict(enumerate(messages))
        spread = self._services().clock.now_ms()  # so that messages without key do not all go to one segment
        results: dict[int, dict[str, Any]] = {}
        for attempt in range(SEALS_MAX):
            record = await self._scalable().record(name)
            for segment, some in _by_segment(record.layout, left, spread).items():
                source = backing_topic(name, record.segments[segment])
                told = await self._routing.call_owner(
                    source, self.publish_here, messages=[left[one].as_object() for one in some]
                )
                for one, outcome in zip(some, told, strict=True):
                    results[one] = {"segment": segment, **outcome}
            left = {one: left[one] for one in left if results[one].get("sealed") and attempt + 1 < SEALS_MAX}
            if not left:
                break
        return tuple(
            {key: value for key, value in results[one].items() if key != "sealed"} for one in range(len(messages))
        )

    @peer_call("publish.publish_here", idempotent=False)
    async def publish_here(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """To a segment that this broker serves. `sealed`: it takes no more messages."""
        try:
            sent = [Outgoing.of_object(one) for one in messages]
            done = await self._publish(TopicName.parse(topic), sent, None, "", managed())
        except TopicTerminated as error:
            return [{"error": error.reason, "sealed": True} for _ in messages]
        return [
            {"error": one, "sealed": one == SEALED}
            if isinstance(one, str)
            else {"messageId": f"{one.ledger}:{one.entry}"}
            for one in done.results
        ]

    def _scalable(self) -> ScalableTopics:
        found = self._services().scalable
        if found is None:
            raise NotAllowed("scalable topics are switched off on this broker")
        return found

    async def _schema_version(self, name: TopicName, schema: Schema | None) -> int | None:
        if schema is not None and schema.type not in TEXT_TYPES:
            raise BadRequest(f"payloads of type {schema.type.name} cannot be given as text; use a client")
        return await self._services().schemas.admit_producer(name, schema)

    def _producer(
        self, peer: LocalPeer, name: TopicName, wanted: str, version: int | None, metadata: Mapping[str, str]
    ) -> Producer:
        services = self._services()
        return Producer(
            peer,
            producer_id=0,
            request_id=0,
            name=wanted or services.names.producer(),
            partition=name.partition_index,
            epoch=0,
            mode=AccessMode.SHARED,
            metadata=dict(metadata),
            window=Window(services.settings.producer_bytes_max, services.settings.producer_messages_max),
            grants_credits=False,
            connected_ms=services.clock.now_ms(),
            schema_version=version_bytes(version),
        )

    def _entry(self, producer: Producer, sequence: int, message: Outgoing) -> bytes:
        return seal_entry(
            pb.MessageMetadata(
                producer_name=producer.name,
                sequence_id=sequence,
                publish_time=self._services().clock.now_ms(),
                partition_key=message.key,
                properties=[pb.KeyValue(key=key, value=value) for key, value in message.properties.items()],
                event_time=message.event_time_ms or None,
                deliver_at_time=message.deliver_at_ms or None,
                schema_version=producer.schema_version or None,
                uncompressed_size=len(message.payload),
            ),
            message.payload,
        )


def _by_segment(layout: Layout, messages: Mapping[int, Outgoing], spread: int) -> dict[int, list[int]]:
    """Numbers of the messages by the active segment of their key, in their order."""
    found: dict[int, list[int]] = {}
    for number, message in messages.items():
        found.setdefault(_segment_of(layout, spread + number, message.key).segment_id, []).append(number)
    return found


def _segment_of(layout: Layout, number: int, key: str | None) -> Segment:
    if key is None:
        return layout.route_keyless(number)
    if layout.routing.kind is RoutingKind.MOD_N:
        return layout.route(layout.routing.partition_hash.of(key))
    return layout.route(murmur3_32(key.encode()))
