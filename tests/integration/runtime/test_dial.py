"""Outgoing streams: bytes arrive in order whatever the kernel takes at once, and each end is reported once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch.runtime.dial import dial
from anabranch.runtime.net import Stream

RETRY_DELAYS = 20.0


class Handler:
    """Keeps received bytes."""

    def __init__(self, *, block_bytes: int = 0) -> None:
        self.stream: Stream | None = None
        self.block_bytes = block_bytes
        self.data = bytearray()
        self.ends: list[str] = []
        self.over = asyncio.Event()
        self.news = asyncio.Event()
        self._room = memoryview(bytearray(1000))

    def attached(self, stream: Stream) -> Handler:
        self.stream = stream
        return self

    def buffer(self) -> memoryview:
        return self._room

    def received(self, count: int) -> None:
        self.data += self._room[:count]
        self.news.set()

    def received_block(self, block: bytes) -> None:
        self.data += block
        self.news.set()

    async def wait(self, size: int) -> None:
        async with asyncio.timeout(RETRY_DELAYS):
            while len(self.data) < size:
                self.news.clear()
                await self.news.wait()

    def drained(self) -> None: ...

    def closed(self, reason: str) -> None:
        self.ends.append(reason)
        self.over.set()


@asynccontextmanager
async def echo(slowly_s: float = 0.0) -> AsyncIterator[int]:
    """Echoes what it receives, and closes when the other side has closed."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(slowly_s)
        while data := await reader.read(50_000):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("block_bytes", [0, 4096])
async def test_buffers_arrive_in_order_whatever_the_kernel_takes(block_bytes: int) -> None:
    pieces = [bytes([n % 251]) * (n * n % 70_000) for n in range(200)]
    async with echo(slowly_s=0.05) as port:
        handler = Handler(block_bytes=block_bytes)
        await dial("127.0.0.1", port, handler.attached)
        assert handler.stream is not None
        for start in range(0, len(pieces), 7):
            handler.stream.write(pieces[start : start + 7])
        whole = b"".join(pieces)
        await handler.wait(len(whole))
        assert bytes(handler.data) == whole and handler.stream.unsent_bytes == 0
        handler.stream.close()
        async with asyncio.timeout(RETRY_DELAYS):
            await handler.over.wait()
        assert handler.ends == ["closed"]


async def test_refused_connection_raises_and_leaks_nothing() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        handler = Handler()
        with pytest.raises(OSError, match="Connect call failed"):
            await dial("127.0.0.1", free.getsockname()[1], handler.attached)
    assert handler.stream is None and handler.ends == []


async def test_peer_close_is_reported() -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        handler = Handler()
        await dial("127.0.0.1", server.sockets[0].getsockname()[1], handler.attached)
        async with asyncio.timeout(RETRY_DELAYS):
            await handler.over.wait()
    assert bytes(handler.data) == b"bye" and handler.ends == ["closed by peer"]


async def test_abort_is_reported_once_and_at_once() -> None:
    async with echo() as port:
        handler = Handler()
        await dial("127.0.0.1", port, handler.attached)
        assert handler.stream is not None
        handler.stream.abort()
        handler.stream.abort()
        handler.stream.write([b"not delivered"])
        assert handler.ends == ["aborted"]
