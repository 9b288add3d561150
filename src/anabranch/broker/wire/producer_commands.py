"""PRODUCER, SEND and CLOSE_PRODUCER."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from struct import Struct
from typing import Any

from crc32c import crc32c as _crc32c

from anabranch.broker.publish.producer import Producer, Publish, Window
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.publish.sequence_ids import highest_of
from anabranch.broker.schemas.registry import version_bytes
from anabranch.broker.segment.owned_segment import segment_of
from anabranch.broker.services import Services
from anabranch.broker.topic_registry.factory import AnyTopic
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler, concerns
from anabranch.broker.wire.schema_commands import wire_schema
from anabranch.model.errors import Error, LimitExceeded, NotAllowed, NotReady
from anabranch.model.names import TopicName, check_subscription_name
from anabranch.model.position import EARLIEST
from anabranch.protocol import entry, replies
from anabranch.protocol.commands import BaseCommand, signed
from anabranch.protocol.errors import BadCommand, BadEntry
from anabranch.protocol.frames import Frame, TakeRun
from anabranch.protocol.native import NATIVE
from anabranch.protocol.server_errors import ServerError
from anabranch.security.authorization import Resource

PRODUCER_NAME_MAX = 1_024

_checksum_ok = entry.checksum_ok
_unpack_checksum = Struct(">I").unpack_from
_new = tuple.__new__


@dataclass(slots=True)
class Attached:
    producer: Producer
    topic: AnyTopic


class ProducerCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services
        self._attached: dict[int, Attached] = {}
        self._opening: dict[int, asyncio.Task[Any]] = {}
        # Producers that the broker closed: SENDs of clients that do not know yet are ignored until this time.
        self._closed_until: dict[int, float] = {}
        self._run: list[Publish] = []  # SENDs of one producer in this step
        self._run_of: Attached | None = None

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.PRODUCER): self._create,
            int(BaseCommand.SEND): self._send,
            int(BaseCommand.CLOSE_PRODUCER): self._close,
        }

    def run_taker(self) -> TakeRun | None:
        return None if NATIVE is None else self.take_sends

    # -- PRODUCER

    def _create(self, body: Any, frame: Frame) -> None:
        self.step_ended()
        producer_id = body.producer_id
        attached = self._attached.get(producer_id)
        if attached is not None and not attached.producer.closed and body.epoch <= attached.producer.epoch:
            self._succeed(body.request_id, attached, None)
            return
        if producer_id in self._opening:
            self._connection.fail(body.request_id, NotReady("this producer is still being created"))
            return
        if len(self._attached) + len(self._opening) >= self._services.settings.producers_per_connection_max:
            self._connection.fail(body.request_id, LimitExceeded("too many producers on one connection"))
            return
        if attached is not None:  # the client reuses the id, perhaps for another topic or name
            del self._attached[producer_id]
            attached.topic.remove_producer(attached.producer)
        task = self._connection.start_request(body.request_id, self._open(body), "producer")
        if task is not None:
            self._opening[producer_id] = task
            task.add_done_callback(lambda _: self._opening.pop(producer_id, None))

    async def _open(self, body: Any) -> None:
        services = self._services
        name = TopicName.parse(body.topic)
        changes = self._connection.access_changes
        await self._connection.authorize(BaseCommand.PRODUCER, Resource.of_topic(name))
        if body.initial_subscription_name:
            owned = Resource.of_topic(name, body.initial_subscription_name)
            await self._connection.authorize(BaseCommand.SUBSCRIBE, owned)
        topic = await services.topics.get(name, create=True)
        if topic.policies.encryption_required and not body.encrypted:
            raise NotAllowed(f"Encryption is required in {name}")
        schema_version = await services.schemas.admit_producer(name, wire_schema(body))
        if body.initial_subscription_name:
            await self._initial_subscription(topic, body.initial_subscription_name)
        producer = self._producer(body, name, version_bytes(schema_version))
        segment = segment_of(topic)
        if segment is not None and services.segments is not None:
            await services.segments.prepare(producer, segment)
        try:
            admission = await topic.add_producer(producer, body.topic_epoch if body.HasField("topic_epoch") else None)
        except BaseException:
            topic.remove_producer(producer)
            raise
        if not self._connection.is_open:
            topic.remove_producer(producer)
            return
        attached = self._attached[body.producer_id] = Attached(producer, topic)
        self._closed_until.pop(body.producer_id, None)
        self._succeed(body.request_id, attached, admission.epoch)
        if changes != self._connection.access_changes:
            await self._check_again(body.producer_id, attached)

    def _producer(self, body: Any, name: TopicName, schema_version: bytes) -> Producer:
        settings = self._services.settings
        if len(body.producer_name) > PRODUCER_NAME_MAX:
            raise BadCommand("producer name is too long")
        return Producer(
            self._connection,
            producer_id=body.producer_id,
            request_id=body.request_id,
            name=body.producer_name or self._services.names.producer(),
            partition=name.partition_index,
            epoch=body.epoch,
            mode=AccessMode(int(body.producer_access_mode)),
            metadata={pair.key: pair.value for pair in body.metadata},
            window=Window(settings.producer_bytes_max, settings.producer_messages_max),
            grants_credits=self._connection.extensions,
            connected_ms=self._services.clock.now_ms(),
            schema_version=schema_version,
            fencing_epoch=body.fencing_epoch if body.HasField("fencing_epoch") else None,
            first_sequence_id=body.first_sequence_id if body.HasField("first_sequence_id") else None,
        )

    async def _initial_subscription(self, topic: AnyTopic, name: str) -> None:
        check_subscription_name(name)
        if topic.name.is_persistent and name not in topic.subscriptions:
            await topic.create_subscription(name, topic.resolve(EARLIEST), {})  # type: ignore[union-attr]  # persistent

    def _succeed(self, request_id: int, attached: Attached, epoch: int | None) -> None:
        producer = attached.producer
        credits, last = producer.grants_credits, attached.topic.last_of(producer.name)
        self._connection.send(
            replies.producer_success(
                request_id,
                producer.name,
                last_sequence_id=last.sequence,
                last_note=last.note if credits else b"",
                schema_version=producer.schema_version,
                topic_epoch=epoch,
                ready=producer.is_ready,
                credit_bytes=producer.window.bytes_max if credits else None,
                credit_messages=producer.window.messages_max if credits else None,
                ancestors=producer.ancestors,
            )
        )

    # -- SEND

    def _send(self, body: Any, frame: Frame) -> None:
        attached = self._attached.get(body.producer_id)
        if attached is None:
            self._check_closed(body.producer_id)
            return
        producer = attached.producer
        if producer.closed:
            return
        view = frame.payload
        if view is None:
            raise BadCommand("SEND without an entry")
        if not producer.is_ready:
            raise BadCommand("SEND of a producer that waits for exclusive access")
        sequence, highest, messages = body.sequence_id, body.highest_sequence_id, body.num_messages
        try:
            is_sound = _checksum_ok(view)
        except BadEntry as error:
            self._refuse(body, ServerError.ChecksumError, error.reason)
            return
        if not is_sound:
            self._refuse(body, ServerError.ChecksumError, "checksum mismatch")
            return
        if body.txnid_most_bits or body.txnid_least_bits:
            self._refuse(body, ServerError.NotAllowedError, "transactions are not supported")
            return
        payload = view if frame.owned else bytes(view)
        last = signed(sequence) if sequence >> 63 else sequence
        if highest:
            last = highest_of(last, signed(highest))
        last_chunk = True
        if body.is_chunk:
            last_chunk = _is_last_chunk(payload)
            producer.chunks_in += 1
        # Equivalent to Publish(…), at half the cost.
        publish: Publish = _new(
            Publish, (producer, sequence, highest, last, messages if messages > 0 else 1, payload, last_chunk)
        )
        if self._run_of is not attached:
            self.step_ended()
            self._run_of = attached
        self._run.append(publish)

    def take_sends(self, view: memoryview, start: int, end: int, owned: bool, frame_bytes_max: int) -> tuple[int, int]:
        """Fast path of `_send` for consecutive plain SENDs. Stops before the first one that must be refused or has
        unusual fields; `_send` handles that. Returns where the rest begins, and how many were handled."""
        assert NATIVE is not None
        attached, known, producer = None, -1, None
        taken, add = 0, self._run.append
        for producer_id, sequence, highest, messages, body, after in NATIVE.sends(view, start, end, frame_bytes_max):
            if producer_id != known:
                attached = self._attached.get(producer_id)
                if attached is None or attached.producer.closed or not attached.producer.is_ready:
                    break
                known, producer = producer_id, attached.producer
            if _crc32c(view[body + 6 : after]) != _unpack_checksum(view, body + 2)[0]:
                break
            if self._run_of is not attached:
                self.step_ended()
                self._run_of, add = attached, self._run.append
            payload = view[body:after] if owned else bytes(view[body:after])
            last = signed(sequence) if sequence >> 63 else sequence
            if highest:
                last = highest_of(last, signed(highest))
            add(_new(Publish, (producer, sequence, highest, last, messages if messages > 0 else 1, payload, True)))
            start = after
            taken += 1
        return start, taken

    def step_ended(self) -> None:
        """Publish the SENDs of one producer from one socket read together, which is much cheaper."""
        attached, self._run_of = self._run_of, None
        if attached is not None:
            run, self._run = self._run, []
            if not attached.producer.closed:
                attached.topic.publish_run(attached.producer, run)

    def _refuse(self, body: Any, code: ServerError, reason: str) -> None:
        last = max(body.sequence_id, body.highest_sequence_id)
        self._connection.send(replies.send_error(body.producer_id, last, code, reason))

    def _check_closed(self, producer_id: int) -> None:
        until = self._closed_until.get(producer_id)
        if until is None or self._services.clock.monotonic() > until:
            raise BadCommand(f"SEND of unknown producer {producer_id}")

    # -- closing

    def _close(self, body: Any, frame: Frame) -> None:
        self.step_ended()
        producer_id, request_id = body.producer_id, body.request_id
        opening = self._opening.get(producer_id)
        if opening is not None:
            opening.cancel()
        attached = self._attached.get(producer_id)
        if attached is None:
            self._connection.send(replies.success(request_id))
            return

        def done() -> None:
            if self._attached.get(producer_id) is attached:
                del self._attached[producer_id]
            attached.topic.remove_producer(attached.producer)
            self._connection.send(replies.success(request_id))

        attached.producer.when_idle(done)

    def producer_closed(self, producer_id: int) -> None:
        self._attached.pop(producer_id, None)
        now = self._services.clock.monotonic()
        self._closed_until = {known: until for known, until in self._closed_until.items() if until > now}
        self._closed_until[producer_id] = now + self._services.settings.keep_alive_seconds

    async def permissions_changed(self, tenant: str | None, namespace: str | None) -> None:
        for producer_id, attached in list(self._attached.items()):
            name = attached.topic.name
            if concerns(name, tenant, namespace):
                await self._check_again(producer_id, attached)

    async def _check_again(self, producer_id: int, attached: Attached) -> None:
        try:
            await self._connection.authorize(BaseCommand.PRODUCER, Resource.of_topic(attached.topic.name))
        except Error:  # also if the check failed: the client reconnects and is checked again
            if self._attached.get(producer_id) is attached:
                attached.topic.remove_producer(attached.producer)
                self._connection.send(replies.close_producer(producer_id))
                self.producer_closed(producer_id)

    def closed(self) -> None:
        self.step_ended()
        attached, self._attached = list(self._attached.values()), {}
        for one in attached:
            one.topic.remove_producer(one.producer)


def _is_last_chunk(payload: bytes | memoryview) -> bool:
    try:
        metadata = entry.metadata(payload)
    except BadEntry:
        return True
    return metadata.chunk_id >= metadata.num_chunks_from_msg - 1
