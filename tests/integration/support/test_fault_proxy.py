"""The fault proxy injects the faults it names, on real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from tests.support.faults.fault_proxy import HOST, FaultProxy, Flow

WAIT_S = 10.0


class World(NamedTuple):
    proxy: FaultProxy
    seen: bytearray
    """What the server received."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An echo server behind a proxy; it answers the end of a stream with b"bye"."""
    seen = bytearray()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                seen.extend(data)
                writer.write(data)
                await writer.drain()
            writer.write(b"bye")
            await writer.drain()
        except OSError:
            pass  # resets are what these tests are about
        finally:
            writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    async with asyncio.timeout(WAIT_S * 3), FaultProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield World(proxy, seen)
    server.close()


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(proxy: FaultProxy) -> Pair:
    """A working connection: one byte was echoed."""
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    await ask(reader, writer, b".")
    return reader, writer


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    assert await asyncio.wait_for(reader.readexactly(len(data)), WAIT_S) == data


async def assert_silent(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)


async def wait_seen(world: World, data: bytes) -> None:
    deadline = time.monotonic() + WAIT_S
    while not world.seen.endswith(data):
        assert time.monotonic() < deadline, bytes(world.seen[-100:])
        await asyncio.sleep(0.001)


async def test_passes_everything_both_ways(world: World) -> None:
    reader, writer = await connect(world.proxy)
    big = bytes(range(256)) * 8192
    writer.write(big)
    assert await reader.readexactly(len(big)) == big
    writer.write_eof()
    assert await reader.read() == b"bye"
    assert world.proxy.up.passed_bytes == len(big) + 1
    assert world.proxy.down.passed_bytes == len(big) + 4


async def test_cut_resets_and_new_connections_work(world: World) -> None:
    reader, _ = await connect(world.proxy)
    world.proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    await connect(world.proxy)


async def test_refuse_and_accept_again_on_the_same_port(world: World) -> None:
    reader, _ = await connect(world.proxy)
    world.proxy.refuse()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, world.proxy.port)
    await world.proxy.accept()
    await connect(world.proxy)


async def test_refuse_can_leave_open_connections_alone(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.refuse(cut=False)
    await ask(reader, writer, b"still here")


@pytest.mark.parametrize("way", ["up", "down"])
async def test_held_bytes_arrive_later(world: World, way: str) -> None:
    reader, writer = await connect(world.proxy)
    lane = world.proxy.up if way == "up" else world.proxy.down
    lane.flow = Flow.HOLD
    writer.write(b"held")
    await assert_silent(reader)
    assert world.seen.endswith(b"held") == (way == "down")
    await world.proxy.heal()
    assert await reader.readexactly(4) == b"held"


async def test_lost_requests_never_arrive_and_the_connection_is_reset(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.up.flow = Flow.LOSE
    writer.write(b"lost")
    await assert_silent(reader)
    await world.proxy.heal()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    assert b"lost" not in world.seen


async def test_lost_answers_leave_the_request_done(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.down.flow = Flow.LOSE
    writer.write(b"request")
    await wait_seen(world, b"request")
    await assert_silent(reader)


async def test_connections_that_lost_nothing_survive_a_black_hole(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.black_hole()
    await assert_silent(reader)
    await world.proxy.heal()
    await ask(reader, writer, b"fine")


async def test_cut_in_the_middle_of_a_request(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.up.cut_after = 3
    writer.write(b"request")
    with pytest.raises(ConnectionResetError):
        while await reader.read(1):
            pass
    await wait_seen(world, b"req")
    await connect(world.proxy)  # it was cut once, not for good


async def test_cut_when_the_answer_comes(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.down.cut_after = 0
    writer.write(b"request")
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    await wait_seen(world, b"request")


async def test_half_close_towards_the_server(world: World) -> None:
    reader, _ = await connect(world.proxy)
    world.proxy.half_close(world.proxy.up)
    assert await reader.read() == b"bye"


async def test_half_close_towards_the_client(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.half_close(world.proxy.down)
    assert await reader.read() == b""
    writer.write(b"one way")
    await wait_seen(world, b"one way")
    writer.write(b" and again")
    await wait_seen(world, b" and again")


async def test_delay_keeps_the_order(world: World) -> None:
    reader, writer = await connect(world.proxy)
    world.proxy.up.delay_s = 0.05
    began = time.monotonic()
    for digit in b"0123456789":
        writer.write(bytes([digit]))
        await asyncio.sleep(0)
    assert await reader.readexactly(10) == b"0123456789"
    assert time.monotonic() - began >= 0.05


async def test_a_dead_server_resets_the_client(world: World) -> None:
    async with FaultProxy(1) as proxy:
        reader, _ = await asyncio.open_connection(HOST, proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
