"""A raw client: frames over TCP, one call per command. Only PING is answered automatically, which can be switched off.
For tests that control exactly what is on the wire."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, frame_with_payload, message_id, position_of, read_command
from anabranch.protocol.entry import build_entry
from anabranch.protocol.frames import FrameDecoder
from anabranch.protocol.replies import PONG_FRAME

RETRY_DELAYS = 30.0


class Received:
    """One frame of the broker."""

    def __init__(self, kind: int, body: Any, payload: bytes | None) -> None:
        self.kind, self.body, self.payload = kind, body, payload

    def __repr__(self) -> str:
        return f"{BaseCommand.Type.Name(self.kind)}({self.body})"


class RawClient:
    def __init__(self, service_url: str) -> None:
        parts = urlsplit(service_url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._decoder = FrameDecoder(16 << 20)
        self._inbox: list[Received] = []
        self._news = asyncio.Event()
        self._ids = 100
        self._asked: dict[int, int] = {}  # request id of PRODUCER -> producer id
        self._producers: set[int] = set()
        self.answers_pings = True
        self.reads = asyncio.Event()  # cleared: nothing more is taken from the socket
        self.reads.set()
        self.is_closed = False

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*self._address, limit=1 << 16)
        self._task = asyncio.ensure_future(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        self._writer.close()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _receive(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                for one in self._decoder.feed(data):
                    kind, body = read_command(bytes(one.command))
                    if kind == BaseCommand.PING and self.answers_pings:
                        self.write(PONG_FRAME)
                    payload = None if one.payload is None else bytes(one.payload)
                    self._inbox.append(Received(kind, body, payload))
                self._news.set()
                await self.reads.wait()
        except ConnectionError:
            pass
        finally:
            self.is_closed = True
            self._news.set()

    # -- sending

    def write(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))

    def tell(self, kind: int, **fields: Any) -> None:
        """A command without an answer."""
        if kind == BaseCommand.PRODUCER:
            self._asked[fields["request_id"]] = fields["producer_id"]
            self._producers.discard(fields["producer_id"])
        self.write(command(kind, **fields))

    async def ask(self, kind: int, **fields: Any) -> Received:
        """A command with a fresh request id, and the frame that carries that id back."""
        self._ids += 1
        fields["request_id"] = request_id = self._ids
        self.tell(kind, **fields)
        return await self.until(lambda one: getattr(one.body, "request_id", None) == request_id)

    # -- receiving

    async def until(self, fits: Any, patience: float = RETRY_DELAYS) -> Received:
        """The first frame that fits, taken out of the inbox."""
        async with asyncio.timeout(patience):
            while True:
                for index, one in enumerate(self._inbox):
                    if fits(one):
                        return self._inbox.pop(index)
                if self.is_closed:
                    raise ConnectionError(f"closed by the broker; inbox: {self._inbox}")
                self._news.clear()
                await self._news.wait()

    async def expect(self, kind: int, patience: float = RETRY_DELAYS) -> Received:
        return await self.until(lambda one: one.kind == kind, patience)

    async def wait_closed(self, patience: float = RETRY_DELAYS) -> None:
        async with asyncio.timeout(patience):
            while not self.is_closed:
                self._news.clear()
                await self._news.wait()

    def take_all(self) -> list[Received]:
        """Everything that has arrived."""
        found, self._inbox = self._inbox, []
        for one in found:
            if one.kind == BaseCommand.CLOSE_PRODUCER:
                self._producers.discard(one.body.producer_id)
            elif one.kind == BaseCommand.PRODUCER_SUCCESS and one.body.producer_ready:
                self._producers.add(self._asked.get(one.body.request_id, -1))
        return found

    def knows_producer(self, producer_id: int) -> bool:
        """Has the broker said that this one may send (as far as `take_all` has seen)?"""
        return producer_id in self._producers

    def forget_producer(self, producer_id: int) -> None:
        self._producers.discard(producer_id)

    def has(self, kind: int) -> bool:
        return any(one.kind == kind for one in self._inbox)

    async def barrier(self) -> None:
        """Everything sent before has been handled, everything said before has arrived."""
        self.tell(BaseCommand.PING)
        await self.expect(BaseCommand.PONG)

    # -- the usual steps

    async def hello(
        self, version: str = "raw", protocol: int = 21, *, extensions: bool = False, **features: bool
    ) -> Received:
        flags = pb.FeatureFlags(anabranch_extensions=extensions, **features) if extensions or features else None
        self.tell(BaseCommand.CONNECT, client_version=version, protocol_version=protocol, feature_flags=flags)
        return await self.expect(BaseCommand.CONNECTED)

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Received:
        return await self.ask(BaseCommand.PRODUCER, topic=topic, producer_id=producer_id, **fields)

    def send(self, sequence: int, data: bytes = b"x", producer_id: int = 1, **fields: Any) -> None:
        body = pb.CommandSend(producer_id=producer_id, sequence_id=sequence, num_messages=1, **fields)
        entry = build_entry(data, sequence_id=sequence)
        self.write(frame_with_payload(BaseCommand(type=BaseCommand.SEND, send=body), entry))

    async def receipt(self, patience: float = RETRY_DELAYS) -> Any:
        return (await self.expect(BaseCommand.SEND_RECEIPT, patience)).body

    async def subscribe(
        self, topic: str, subscription: str = "s", consumer_id: int = 1, *, permits: int = 0, **fields: Any
    ) -> Received:
        fields.setdefault("subType", pb.CommandSubscribe.Shared)
        fields.setdefault("initialPosition", pb.CommandSubscribe.Earliest)
        answer = await self.ask(
            BaseCommand.SUBSCRIBE, topic=topic, subscription=subscription, consumer_id=consumer_id, **fields
        )
        if permits:
            self.flow(permits, consumer_id)
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.tell(BaseCommand.FLOW, consumer_id=consumer_id, messagePermits=permits)

    async def message(self, patience: float = RETRY_DELAYS) -> Any:
        return (await self.expect(BaseCommand.MESSAGE, patience)).body

    async def messages(self, count: int) -> list[Position]:
        return [position_of((await self.message()).message_id) for _ in range(count)]

    def ack(self, *positions: Position, consumer_id: int = 1, **fields: Any) -> None:
        fields.setdefault("ack_type", pb.CommandAck.Individual)
        self.tell(BaseCommand.ACK, consumer_id=consumer_id, message_id=[message_id(p) for p in positions], **fields)


def command(kind: int, **fields: Any) -> bytes:
    name = BaseCommand.Type.Name(kind)
    made = BaseCommand(type=name)
    body = getattr(made, name.lower())
    body.SetInParent()
    body.MergeFrom(type(body)(**{key: value for key, value in fields.items() if value is not None}))
    return frame(made)
