"""One connection on an in-memory stream: what it sends, when it stops reading, what closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from anabranch.broker.services import Address, NameGenerator, Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import BaseCommand, frame, read_command
from anabranch.protocol.frames import Frame, FrameDecoder
from anabranch.runtime.net import Buffer
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.schema_registry import new_registry

CONNECT = frame(
    BaseCommand(type=BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="test", protocol_version=21))
)
PING = frame(BaseCommand(type=BaseCommand.PING, ping=pb.CommandPing()))
PONG = frame(BaseCommand(type=BaseCommand.PONG, pong=pb.CommandPong()))


class MemoryStream:
    """A stream whose other end takes a given number of bytes."""

    def __init__(self) -> None:
        self.peer = "test:1"
        self.certificate_name: str | None = None
        self.unsent_bytes = 0
        self.is_reading = True
        self.is_stuck = False
        self.ended = ""
        self.writes = 0
        self.handler: Connection | None = None
        self._sent = bytearray()

    def write(self, buffers: Sequence[Buffer]) -> None:
        self.writes += 1
        for buffer in buffers:
            self._sent += buffer
            if self.is_stuck:
                self.unsent_bytes += len(buffer)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.is_reading = False
        asyncio.get_running_loop().call_soon(self._end, "closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, reason: str) -> None:
        if not self.ended:
            self.ended = reason
            assert self.handler is not None
            self.handler.closed(reason)

    def frames(self) -> list[tuple[int, Any]]:
        data, self._sent = bytes(self._sent), bytearray()
        return [read_command(bytes(one.command)) for one in FrameDecoder(1 << 20).feed(data)]


class Faulty(CommandSet):
    """Handles FLOW with a function of the test, and records its events."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.events: list[str] = []
        self.on_flow: Callable[[], None] = lambda: None

    def handlers(self) -> dict[BaseType, Handler]:
        return {int(BaseCommand.FLOW): self._flow}

    def _flow(self, body: Any, frame: Frame) -> None:
        self.events.append(f"flow {body.messagePermits}")
        self.on_flow()
        if self.fault is not None:
            raise self.fault

    def writable(self) -> None:
        self.events.append("writable")

    def closed(self) -> None:
        self.events.append("closed")
        if self.fault is not None:
            raise self.fault


async def turn() -> None:
    """Let everything that is ready happen."""
    for _ in range(5):
        await asyncio.sleep(0)


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.world = BrokerWorld(**settings)
        self.clock = self.world.clock
        services = Services(
            clock=self.world.clock,
            catalog=self.world.catalog,
            topics=self.world.topics,
            schemas=new_registry(self.world.store, self.world.catalog, self.world.clock),
            names=NameGenerator("x"),
            address=Address("pulsar://here:1", "http://here:2"),
        )
        self.stream = MemoryStream()
        self.gone: list[Connection] = []
        self.connection = Connection(self.stream, services, bytearray(64 * 1024), self.gone.append)
        self.stream.handler = self.connection
        self.part = Faulty()
        self.connection.serve(self.part)

    def receive(self, *data: bytes) -> None:
        joined = b"".join(data)
        room = self.connection.buffer()
        room[: len(joined)] = joined
        self.connection.received(len(joined))

    async def replies(self) -> list[int]:
        await turn()
        return [kind for kind, _ in self.stream.frames()]

    async def connected(self) -> Scene:
        self.receive(CONNECT)
        assert await self.replies() == [BaseCommand.CONNECTED]
        return self


def flow(permits: int) -> bytes:
    return frame(BaseCommand(type=BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=permits)))


async def test_frames_of_one_step_leave_together() -> None:
    scene = await Scene().connected()
    before = scene.stream.writes
    scene.receive(PING, PING, PING)
    assert await scene.replies() == [BaseCommand.PONG] * 3
    assert scene.stream.writes == before + 1


@pytest.mark.parametrize(
    "data",
    [flow(1), PONG, CONNECT + CONNECT, b"\x00\x00\x00\x02\x00\x00", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["FLOW first", "PONG first", "CONNECT twice", "bad frame", "HTTP"],
)
async def test_a_violation_ends_this_connection(data: bytes) -> None:
    scene = Scene()
    scene.receive(data)
    await turn()
    assert scene.stream.ended
    assert scene.gone == [scene.connection]
    assert not scene.connection.is_open


async def test_ping_is_answered_before_the_handshake_too() -> None:
    scene = Scene()
    scene.receive(PING)
    assert await scene.replies() == [BaseCommand.PONG]


async def test_a_fault_of_ours_ends_only_this_connection() -> None:
    scene = await Scene().connected()
    scene.part.fault = RuntimeError("our own mistake")
    scene.receive(flow(1), flow(2))
    assert scene.stream.ended
    assert scene.gone == [scene.connection], "forgotten even though its parts fail to close"
    assert scene.part.events == ["flow 1", "closed"]


async def test_silent_client_is_pinged_then_closed() -> None:
    scene = await Scene(keep_alive_seconds=30).connected()
    scene.clock.advance(30)
    assert await scene.replies() == [BaseCommand.PING]
    scene.receive(PONG)
    scene.clock.advance(30)
    assert await scene.replies() == [BaseCommand.PING]
    assert not scene.stream.ended
    scene.clock.advance(30)
    assert scene.stream.ended == "aborted"


async def test_connection_without_connect_command_is_closed() -> None:
    scene = Scene(keep_alive_seconds=30)
    scene.clock.advance(30)
    assert scene.stream.ended


async def test_reading_pauses_at_the_cap_and_resumes_below_half() -> None:
    scene = await Scene(producer_bytes_max=64 << 10, connection_bytes_max=128 << 10).connected()
    states = []
    for change in (100 << 10, 28 << 10, 1, -(60 << 10), -(10 << 10)):
        scene.connection.add_pending_bytes(change)
        states.append(scene.stream.is_reading)
    assert states == [True, True, False, False, True]


async def test_silence_proves_nothing_while_we_do_not_read() -> None:
    scene = await Scene(keep_alive_seconds=30).connected()
    scene.connection.add_pending_bytes(1 << 30)
    for _ in range(5):
        scene.clock.advance(30)
    assert not scene.stream.ended
    scene.connection.add_pending_bytes(-(1 << 30))
    for _ in range(2):
        scene.clock.advance(30)
    assert scene.stream.ended


async def test_dispatch_pauses_at_the_unsent_limit_and_is_woken() -> None:
    scene = await Scene(consumer_unsent_bytes_max=1_000).connected()
    scene.stream.is_stuck = True
    room = [scene.connection.has_room]
    scene.connection.send(b"\0" * 1_001)
    room.append(scene.connection.has_room)
    await turn()
    room.append(scene.connection.has_room)
    assert room == [True, False, False]
    scene.stream.unsent_bytes = 0
    scene.connection.drained()
    assert scene.part.events == ["writable"]
    scene.connection.drained()
    assert scene.part.events == ["writable"], "once"


async def test_probe_is_answered_by_any_bytes() -> None:
    scene = await Scene().connected()
    probe = asyncio.ensure_future(scene.connection.is_alive())
    assert await scene.replies() == [BaseCommand.PING]
    scene.receive(flow(1))
    assert await probe is True


async def test_probe_of_a_silent_peer_closes_it() -> None:
    scene = await Scene(probe_seconds=0.01).connected()
    assert await scene.connection.is_alive() is False
    assert scene.stream.ended == "aborted"
    assert await scene.connection.is_alive() is False


async def test_unsupported_command_gets_an_error_with_its_request_id() -> None:
    scene = await Scene().connected()
    scene.receive(frame(BaseCommand(type=BaseCommand.NEW_TXN, new_txn=pb.CommandNewTxn(request_id=7))))
    await turn()
    ((kind, body),) = scene.stream.frames()
    assert (kind, body.request_id) == (BaseCommand.ERROR, 7)
    assert not scene.stream.ended


async def test_only_so_many_requests_at_once() -> None:
    scene = await Scene(requests_in_flight_max=2).connected()
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    for number in range(3):
        scene.connection.start_request(number, wait(), "wait")
    await turn()
    ((kind, body),) = scene.stream.frames()
    assert (kind, body.request_id) == (BaseCommand.ERROR, 2)
    scene.stream.abort()
    await turn()
    assert len(scene.connection.tasks) == 0, "a closed connection leaves no task"


async def test_unexpected_failure_of_a_request_is_answered() -> None:
    scene = await Scene().connected()

    async def fail() -> None:
        raise ZeroDivisionError

    scene.connection.start_request(5, fail(), "fail")
    await turn()
    ((kind, body),) = scene.stream.frames()
    assert (kind, body.request_id) == (BaseCommand.ERROR, 5)
    assert not scene.stream.ended


async def test_reading_pauses_while_client_does_not_read_answers() -> None:
    scene = await Scene(producer_bytes_max=64 << 10, connection_bytes_max=64 << 10).connected()
    scene.stream.is_stuck = True
    scene.receive(*[PING] * 50)
    await turn()
    scene.connection.send(b"\0" * (64 << 10))
    await turn()
    states = [scene.stream.is_reading]
    scene.connection.add_pending_bytes(1 << 20)
    scene.connection.add_pending_bytes(-(1 << 20))
    states.append(scene.stream.is_reading)
    scene.stream.unsent_bytes = 0
    scene.connection.drained()
    states.append(scene.stream.is_reading)
    assert states == [False, False, True]


async def test_paused_client_stays_alive_while_it_takes_bytes() -> None:
    scene = await Scene(keep_alive_seconds=30, producer_bytes_max=64 << 10, connection_bytes_max=64 << 10).connected()
    scene.stream.is_stuck = True
    scene.connection.send(b"\0" * (100 << 10))
    await turn()
    for _ in range(6):
        scene.stream.unsent_bytes -= 5_000
        scene.clock.advance(30)
        await turn()
    alive = not scene.stream.ended
    for _ in range(3):
        scene.clock.advance(30)
    assert (alive, scene.stream.ended) == (True, "aborted")


async def test_nothing_is_handled_behind_a_close() -> None:
    scene = await Scene().connected()
    scene.part.on_flow = scene.connection.close
    scene.receive(flow(1), flow(2))
    assert "flow 2" not in scene.part.events
