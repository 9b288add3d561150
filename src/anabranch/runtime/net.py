"""Port for the network: byte streams, received into a buffer of the handler and sent as lists of buffers.

Plain sockets are driven directly (`recv_into`, `sendmsg`), because asyncio's transports on Python 3.11 join every list
of buffers before they send it. Measured, that doubles the broker's CPU time for dispatch of large entries.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import ClassVar, Protocol

from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

Buffer = bytes | bytearray | memoryview

IOVECS_MAX = 512
JOIN_BYTES_MAX = 64 * 1024  # many small buffers are cheaper to join than to pass one by one
READS_PER_WAKE = 8  # where one read gives little (TLS records); then the loop serves other connections


class Stream(Protocol):
    """One connection, as its owner sees it."""

    peer: str
    unsent_bytes: int
    certificate_name: str | None  # common name of the peer's verified certificate, with TLS

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send in order. What the kernel does not take now is queued; the owner watches `unsent_bytes`."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Stop reading, send what is queued, then close."""

    def abort(self) -> None:
        """Close at once; queued bytes are dropped."""


class StreamHandler(Protocol):
    """The user of a `Stream`."""

    @property
    def block_bytes(self) -> int:
        """If > 0, the next bytes may be passed to `received_block` as a new `bytes` object of up to this size."""

    def buffer(self) -> memoryview: ...

    def received(self, count: int) -> None: ...

    def received_block(self, block: bytes) -> None: ...

    def drained(self) -> None:
        """All queued bytes have been passed to the kernel."""

    def closed(self, reason: str) -> None:
        """Called exactly once, whichever side closed."""


MakeHandler = Callable[[Stream], StreamHandler]


class Listener(Protocol):
    """Bound, with a known port; connections wait in the kernel until `start`."""

    host: str
    port: int

    def start(self) -> None: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, host: str, port: int, make_handler: MakeHandler) -> Listener: ...


class SocketStream:
    """A non-blocking TCP socket on the running loop. The TLS subclass only reads and sends its bytes differently."""

    WAITS: ClassVar[tuple[type[OSError], ...]] = (BlockingIOError, InterruptedError)
    """Errors of the socket that mean "not now"."""

    def __init__(self, sock: socket.socket, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.unsent_bytes = 0
        self.certificate_name: str | None = None
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._queue: deque[Buffer] = deque()
        self._handler: StreamHandler | None = None
        self._reading = False
        self._writing = False
        self._closing = False
        self._dead = False

    def start(self, handler: StreamHandler) -> None:
        self._handler = handler
        self.resume_reading()

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._reading and not self._closing and not self._dead:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        """One read per turn of the loop, as much as the handler asks for, so that other connections get their turn."""
        handler = self._handler
        assert handler is not None
        try:
            if size := handler.block_bytes:
                block = self._sock.recv(size)
                count = len(block)
            else:
                count = self._sock.recv_into(handler.buffer())
        except self.WAITS:
            return
        except OSError as error:
            self._end(words_of(error))
            return
        if not count:
            self._end("closed by peer")
        elif size:
            handler.received_block(block)
        else:
            handler.received(count)

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._dead or self._closing:
            return
        self.unsent_bytes += sum(map(len, buffers))
        self._queue.extend(buffers)
        if not self._writing:
            self._send()

    def _send(self) -> None:
        try:
            while self._queue:
                self._forget(self._send_some())
        except self.WAITS:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._writable)
            return
        except OSError as error:
            self._end(words_of(error))
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._closing:
            self._end("closed")

    def _send_some(self) -> int:
        """Pass a part of the queue to the kernel; returns how many bytes it took."""
        queue = self._queue
        if len(queue) > 4 and self.unsent_bytes < JOIN_BYTES_MAX:
            joined = b"".join(queue)
            queue.clear()
            queue.append(joined)
        if len(queue) == 1:
            return self._sock.send(queue[0])
        return self._sock.sendmsg(islice(queue, IOVECS_MAX))

    def _forget(self, sent: int) -> None:
        self.unsent_bytes -= sent
        queue = self._queue
        if not self.unsent_bytes:
            queue.clear()
            return
        while sent:
            size = len(queue[0])
            if size > sent:
                queue[0] = memoryview(queue[0])[sent:]
                return
            sent -= size
            queue.popleft()

    def _writable(self) -> None:
        self._send()
        if not self._queue and not self._dead:
            assert self._handler is not None
            self._handler.drained()

    def close(self) -> None:
        if self._closing or self._dead:
            return
        self.pause_reading()
        self._closing = True
        if not self._queue:
            self._loop.call_soon(self._end, "closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, reason: str) -> None:
        if self._dead:
            return
        self._dead = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._queue.clear()
        self.unsent_bytes = 0
        if reason == "closed":
            self._say_goodbye()
        self._sock.close()
        handler, self._handler = self._handler, None  # it refers to this stream
        if handler is not None:
            handler.closed(reason)

    def _say_goodbye(self) -> None:
        """Called before a clean close; plain TCP sends nothing."""


def words_of(error: OSError) -> str:
    return error.strerror or str(error)


class SocketListener:
    """Accepts on one listening socket. Without free file descriptors it pauses accepting instead of spinning."""

    def __init__(self, sock: socket.socket, make_handler: MakeHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._loop = loop
        self._make_handler = make_handler
        self.host, self.port = sock.getsockname()[:2]

    def start(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.error(
                        "accepting connections paused for a second; raise the limit of open files",
                        extra={"reason": error.strerror},
                    )
                    self._loop.remove_reader(self._sock.fileno())
                    self._loop.call_later(1.0, self._again)
                    return
                raise
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted(sock, f"{address[0]}:{address[1]}")

    def accepted(self, sock: socket.socket, peer: str) -> None:
        """A new connection, already non-blocking."""
        stream = SocketStream(sock, peer, self._loop)
        stream.start(self._make_handler(stream))

    def _again(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class SocketNetwork:
    """Real TCP. With `shares_ports` several processes may listen on one port; the kernel spreads connections."""

    def __init__(self, *, shares_ports: bool = False) -> None:
        self._shares_ports = shares_ports

    async def listen(self, host: str, port: int, make_handler: MakeHandler) -> SocketListener:
        loop = asyncio.get_running_loop()
        sock = await bound_socket(loop, host, port, shares_port=self._shares_ports)
        return SocketListener(sock, make_handler, loop)


async def bound_socket(
    loop: asyncio.AbstractEventLoop, host: str, port: int, *, shares_port: bool = False
) -> socket.socket:
    """A listening, non-blocking socket on the first address of the name."""
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, proto, _, address = infos[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use") from error
        raise
    return sock
