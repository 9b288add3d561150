"""A TCP proxy that injects faults: it cuts, delays, holds, drops and half-closes connections.

`up` is the lane from clients to the server, `down` the way back; both can be switched at any
time and apply to every connection, open or new. `async with FaultProxy(port) as proxy: connect to proxy.port`.

    hold     bytes stay in flight and arrive when the lane passes again: a partition that TCP survives
    lose     bytes are read and thrown away; such a connection is reset by `heal`, because no TCP stream has a gap
"""

from __future__ import annotations

import asyncio
import socket
import struct
from enum import StrEnum
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
CHUNKS_IN_FLIGHT_MAX = 256
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Flow(StrEnum):
    PASS = "pass"
    HOLD = "hold"
    LOSE = "lose"


class Lane:
    """One direction of all connections."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.passed_bytes = 0
        self.cut_after: int | None = None
        """Let this many more bytes pass, then cut every connection (once)."""
        self._flow = Flow.PASS
        self._moving = asyncio.Event()
        self._moving.set()

    @property
    def flow(self) -> Flow:
        return self._flow

    @flow.setter
    def flow(self, flow: Flow) -> None:
        self._flow = flow
        if flow is Flow.HOLD:
            self._moving.clear()
        else:
            self._moving.set()

    async def wait_moving(self) -> None:
        await self._moving.wait()

    def heal(self) -> None:
        self.delay_s, self.cut_after, self.flow = 0.0, None, Flow.PASS


class Link:
    """One client's connection and the one made for it to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.has_gap = False
        self._ended: set[asyncio.StreamWriter] = set()

    def takes(self, writer: asyncio.StreamWriter) -> bool:
        return writer not in self._ended and not writer.is_closing()

    def reset(self) -> None:
        for writer in (self.client, self.server):
            reset(writer)

    def finish(self, writer: asyncio.StreamWriter) -> None:
        if self.takes(writer):
            self._ended.add(writer)
            writer.write_eof()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


class FaultProxy:
    """A proxy from its own listening port to a server's port, both on the loopback interface."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.up, self.down = Lane(), Lane()
        self.accepted = 0
        self._links: set[Link] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        # Bound but never listening: the port stays ours while connections are refused.
        self._placeholder = _bound(0)
        self.port: int = self._placeholder.getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        handlers = tuple(self._handlers)
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        self._placeholder.close()

    @property
    def connections(self) -> int:
        return len(self._links)

    async def accept(self) -> None:
        """Take new connections (the state after opening)."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accepted, sock=_bound(self.port))

    def refuse(self, *, cut: bool = True) -> None:
        """Behave like a dead server: new connections are refused by the kernel, open ones are reset."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if cut:
            self.cut()

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        for link in tuple(self._links):
            link.reset()

    def half_close(self, lane: Lane) -> None:
        """End this direction of every connection with FIN; the other direction continues."""
        for link in tuple(self._links):
            link.finish(link.server if lane is self.up else link.client)

    def black_hole(self, flow: Flow = Flow.LOSE) -> None:
        self.up.flow = self.down.flow = flow

    async def heal(self) -> None:
        """Everything passes again. Connections that lost bytes are reset."""
        self.up.heal()
        self.down.heal()
        for link in tuple(self._links):
            if link.has_gap:
                link.reset()
        await self.accept()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            reset(client)  # as close to "refused" as one can get once accepted
            return
        link = Link(client, server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as lanes:
                lanes.create_task(self._carry(link, client_reader, server, self.up))
                lanes.create_task(self._carry(link, server_reader, client, self.down))
        except* OSError:
            pass  # one side was reset: so is the other, below
        finally:
            self._links.discard(link)
            link.reset()

    async def _carry(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: Lane) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_IN_FLIGHT_MAX)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(reader, queue, lane))
            both.create_task(self._write(link, writer, queue, lane))

    async def _read(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]], lane: Lane) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            data = await reader.read(CHUNK_BYTES)
            await queue.put((clock() + lane.delay_s, data))
            if not data:
                return

    async def _write(
        self, link: Link, writer: asyncio.StreamWriter, queue: asyncio.Queue[tuple[float, bytes]], lane: Lane
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await queue.get()
            if due > clock():
                await asyncio.sleep(due - clock())
            await lane.wait_moving()
            if not data:
                link.finish(writer)
                return
            if lane.flow is Flow.LOSE:
                link.has_gap = True
                continue
            allowed = lane.cut_after
            if allowed is not None:
                data = data[:allowed]
                lane.cut_after = None if len(data) == allowed else allowed - len(data)
            if data and link.takes(writer):
                lane.passed_bytes += len(data)
                writer.write(data)
                await writer.drain()
            if allowed is not None and lane.cut_after is None:
                self.cut()


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    return sock
