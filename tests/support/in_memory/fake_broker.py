"""A broker that a test plays by hand: received commands come out, frames go in.

For events that are rare with a real broker: layouts out of order, errors after a success, connections lost between
two frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from anabranch.client.connection.connection_state import command
from anabranch.model.layout import Layout
from anabranch.model.segment import Segment
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, read_command
from anabranch.protocol.frames import MESSAGE_BYTES_MAX, FrameDecoder

RETRY_DELAYS = 10.0


@dataclass
class ReceivedCommand:
    kind: int
    body: Any
    payload: bytes
    connection: FakeConnection

    def answer(self, kind: int, **fields: Any) -> None:
        if "request_id" in type(self.body).DESCRIPTOR.fields_by_name:
            fields.setdefault("request_id", self.body.request_id)
        self.connection.send_command(kind, **fields)


class FakeConnection:
    """One connection of a client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send_command(self, kind: int, **fields: Any) -> None:
        self._writer.write(command(kind, **fields))

    def send_frame(self, frame: bytes) -> None:
        self._writer.write(frame)

    def cut(self) -> None:
        self._writer.transport.abort()


class FakeBroker:
    """`async with FakeBroker() as broker`: lookups lead back here, keep-alive is answered, the rest is the test's."""

    def __init__(self, **features: bool) -> None:
        self._features = pb.FeatureFlags(**features)
        self._inbox: asyncio.Queue[ReceivedCommand] = asyncio.Queue()
        self._lines: list[FakeConnection] = []
        self._server: asyncio.Server | None = None
        self.partitions: Mapping[str, int] = {}
        self.refusals: dict[int, list[pb.ServerError]] = {}  # by command: what it is refused with first

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Abort all connections, so that a client that closes waits for no answer."""
        for connection in self._lines:
            connection.cut()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def expect(self, *kinds: int) -> ReceivedCommand:
        """The next command that is not housekeeping; it must be one of these."""
        async with asyncio.timeout(RETRY_DELAYS):
            received = await self._inbox.get()
        names = [BaseCommand.Type.Name(kind) for kind in kinds]
        assert received.kind in kinds, (
            f"{BaseCommand.Type.Name(received.kind)} came instead of {names}: {received.body}"
        )
        return received

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FakeConnection(writer)
        self._lines.append(connection)
        decoder = FrameDecoder(MESSAGE_BYTES_MAX)
        try:
            while data := await reader.read(65536):
                for one in decoder.feed(data):
                    kind, body = read_command(one.command)
                    self._take(ReceivedCommand(kind, body, bytes(one.payload or b""), connection))
        except ConnectionError:
            pass  # the test cut it
        finally:
            writer.close()

    def _take(self, received: ReceivedCommand) -> None:
        if received.kind == BaseCommand.CONNECT:
            received.connection.send_command(
                BaseCommand.CONNECTED, server_version="fake", protocol_version=21, feature_flags=self._features
            )
        elif received.kind == BaseCommand.PING:
            received.connection.send_command(BaseCommand.PONG)
        elif trouble := self.refusals.get(received.kind):
            self._refuse(received, trouble.pop(0))
        elif received.kind == BaseCommand.LOOKUP:
            received.answer(BaseCommand.LOOKUP_RESPONSE, response=pb.CommandLookupTopicResponse.Connect)
        elif received.kind == BaseCommand.PARTITIONED_METADATA:
            count = self.partitions.get(received.body.topic, 0)
            received.answer(BaseCommand.PARTITIONED_METADATA_RESPONSE, partitions=count, response=0)
        else:
            self._inbox.put_nowait(received)

    def _refuse(self, received: ReceivedCommand, error: pb.ServerError) -> None:
        if received.kind == BaseCommand.LOOKUP:
            refused = pb.CommandLookupTopicResponse.Failed
            received.answer(BaseCommand.LOOKUP_RESPONSE, response=refused, error=error, message="")
        elif received.kind == BaseCommand.PARTITIONED_METADATA:
            failed = pb.CommandPartitionedTopicMetadataResponse.Failed
            received.answer(BaseCommand.PARTITIONED_METADATA_RESPONSE, response=failed, error=error, message="")
        else:
            received.answer(BaseCommand.ERROR, error=error, message="")


def send_layout(received: ReceivedCommand, layout: Layout, topic: str, **extras: Any) -> None:
    """Answer a layout lookup, or push to its session."""
    received.connection.send_command(
        BaseCommand.SCALABLE_TOPIC_UPDATE,
        session_id=received.body.session_id,
        dag=dag_of(layout, **extras),
        resolved_topic_name=topic,
    )


def dag_of(layout: Layout, **extras: Any) -> pb.ScalableTopicDAG:
    return pb.ScalableTopicDAG(
        epoch=layout.epoch, segments=[info_of(one) for one in layout.segments.values()], **extras
    )


def info_of(one: Segment) -> pb.SegmentInfoProto:
    info = pb.SegmentInfoProto(
        segment_id=one.segment_id,
        hash_start=one.hash_range.start,
        hash_end=one.hash_range.end,
        state=pb.ACTIVE if one.is_active else pb.SEALED,
        parent_ids=one.parent_ids,
        child_ids=one.child_ids,
        created_at_epoch=one.created_at_epoch,
        created_at_ms=one.created_at_ms,
    )
    if one.legacy_topic_name is not None:
        info.legacy_topic_name = one.legacy_topic_name
    if not one.is_active:
        info.sealed_at_epoch, info.sealed_at_ms = one.sealed_at_epoch, one.sealed_at_ms
        if one.last_position is not None:
            info.last_position.ledgerId, info.last_position.entryId = one.last_position
    return info
