"""TLS streams on the network port: the same `Stream`, encrypted. The handler is created after the handshake.

Python's ssl copies every buffer, so small ones are joined into records first.

A client that is refused learns the reason: the server sends the TLS alert and closes only after the client has.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from anabranch.runtime.logs import get_logger
from anabranch.runtime.net import (
    READS_PER_WAKE,
    Buffer,
    MakeHandler,
    SocketListener,
    SocketStream,
    Stream,
    StreamHandler,
    bound_socket,
)
from anabranch.runtime.tasks import TaskOwner
from anabranch.runtime.tls import ServerObject, TlsServer, common_name

log = get_logger(__name__)

RECORD_BYTES = 16 * 1024  # maximum of a TLS record: buffers are joined until at least this much
HANDSHAKE_SECONDS = 10.0
HANDSHAKES_MAX = 1_000
REFUSED_SECONDS = 1.0  # for a client to read the alert
_DROPPED_BYTES = 64 * 1024  # per read


class TlsStream(SocketStream):
    """A non-blocking TLS connection on the running loop."""

    WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, *SocketStream.WAITS)

    def __init__(self, sock: ssl.SSLSocket, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(sock, peer, loop)
        self.certificate_name = common_name(sock.getpeercert())
        self._tls_sock = sock
        self._repeating = False

    def resume_reading(self) -> None:
        super().resume_reading()
        self._loop.call_soon(self._leftover)  # decrypted data does not make the socket readable

    def _leftover(self) -> None:
        if self._reading and not self._dead and self._tls_sock.pending():
            self._readable()

    def _readable(self) -> None:
        handler = self._handler
        assert handler is not None
        for _ in range(READS_PER_WAKE):
            count, end = self._fill(handler.buffer())
            if count:
                handler.received(count)
            if end is not None:
                if end:
                    self._end(end)
                return
            if not self._reading or self._dead:
                return
        self._loop.call_soon(self._leftover)

    def _fill(self, room: memoryview) -> tuple[int, str | None]:
        """Read as many records as fit, because a small message is one record.

        Returns the number of bytes, and why it stopped ("": nothing more now, None: the buffer is full).
        """
        count = 0
        receive = self._sock.recv_into
        try:
            while count < len(room):
                size = receive(room[count:])
                if size == 0:
                    return count, "closed by peer"
                count += size
        except self.WAITS:
            return count, ""
        except OSError as error:
            return count, _words(error)
        return count, None

    def _send_some(self) -> int:
        """ssl requires that a write which had to wait is repeated with the same bytes.

        Without renegotiation a write never waits for a read.
        """
        if not self._repeating:
            self._join()
        self._repeating = True
        sent = self._sock.send(self._queue[0])
        self._repeating = False
        return sent

    def _join(self) -> None:
        """Join small buffers into one record."""
        queue = self._queue
        if len(queue) < 2 or len(queue[0]) >= RECORD_BYTES:
            return
        some: list[Buffer] = []
        size = 0
        while queue and size < RECORD_BYTES:
            size += len(queue[0])
            some.append(queue.popleft())
        queue.appendleft(b"".join(some))

    def _say_goodbye(self) -> None:
        with suppress(OSError, ValueError):  # the peer's close notification is not awaited
            self._tls_sock.unwrap()


class _RefusedClients:
    """Sockets of clients whose handshake failed, open until the client closes or `REFUSED_SECONDS` have passed.

    With TLS 1.3 a client sends its first request before it knows that its certificate is refused. If the server closed
    with that request unread, the kernel would reset the connection, and the client would lose the alert. So the server
    ends only its own side, and drops what it reads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, sock: socket.socket, alert: bytes = b"") -> None:
        """Take over the socket. `alert` is what ssl has not sent itself."""
        try:
            if alert:
                sock.send(alert)  # a few bytes, which a new connection has room for
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # the client has gone
            sock.close()
            return
        self._timers[sock] = self._loop.call_later(REFUSED_SECONDS, self._close, sock)
        self._loop.add_reader(sock.fileno(), self._drop, sock)

    def _drop(self, sock: socket.socket) -> None:
        try:
            if sock.recv(_DROPPED_BYTES):
                return
        except SocketStream.WAITS:
            return
        except OSError:  # the client has reset the connection
            pass
        self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        self._timers.pop(sock).cancel()
        self._loop.remove_reader(sock.fileno())
        sock.close()

    def close(self) -> None:
        for sock in list(self._timers):
            self._close(sock)


class TlsListener(SocketListener):
    """Accepts, performs the handshake within a deadline, then passes the stream on."""

    def __init__(
        self, sock: socket.socket, make_handler: MakeHandler, loop: asyncio.AbstractEventLoop, tls: TlsServer
    ) -> None:
        super().__init__(sock, make_handler, loop)
        self._tls = tls
        self._handshakes: dict[ssl.SSLSocket, asyncio.TimerHandle] = {}
        self._refused = _RefusedClients(loop)

    def accepted(self, sock: socket.socket, peer: str) -> None:
        if len(self._handshakes) + len(self._refused) >= HANDSHAKES_MAX:
            sock.close()
            return
        self._tls.refresh()
        try:
            wrapped = self._tls.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            log.debug("TLS connection closed during the handshake", extra={"peer": peer, "reason": _words(error)})
            sock.close()
            return
        self._handshakes[wrapped] = self._loop.call_later(HANDSHAKE_SECONDS, self._give_up, wrapped, peer, "too slow")
        self._shake(wrapped, peer)

    def _shake(self, sock: ssl.SSLSocket, peer: str) -> None:
        if sock not in self._handshakes:
            return
        fd = sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(fd, self._shake, sock, peer)
            return
        except ssl.SSLWantWriteError:
            self._loop.add_writer(fd, self._shake, sock, peer)
            return
        except (OSError, ValueError) as error:
            self._give_up(sock, peer, _words(error), has_alert=isinstance(error, ssl.SSLError))
            return
        self._handshakes.pop(sock).cancel()
        stream = TlsStream(sock, peer, self._loop)
        stream.start(self._make_handler(stream))

    def _give_up(self, sock: ssl.SSLSocket, peer: str, reason: str, *, has_alert: bool = False) -> None:
        timer = self._handshakes.pop(sock, None)
        if timer is None:
            return
        timer.cancel()
        log.info("TLS handshake failed", extra={"peer": peer, "reason": reason})
        self._loop.remove_reader(sock.fileno())
        self._loop.remove_writer(sock.fileno())
        if has_alert:
            self._refused.add(sock)
        else:
            sock.close()

    def close(self) -> None:
        super().close()
        self._refused.close()
        for sock in list(self._handshakes):
            self._give_up(sock, "", "the port was closed")


class TlsNetwork:
    """Real TCP with TLS."""

    def __init__(self, tls: TlsServer, *, shares_ports: bool = False) -> None:
        self._tls = tls
        self._shares_ports = shares_ports

    async def listen(self, host: str, port: int, make_handler: MakeHandler) -> TlsListener:
        loop = asyncio.get_running_loop()
        sock = await bound_socket(loop, host, port, shares_port=self._shares_ports)
        return TlsListener(sock, make_handler, loop, self._tls)


class TlsStreamServer:
    """Like `asyncio.start_server` with TLS, but every connection uses the context that is current then."""

    def __init__(
        self, tls: TlsServer, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None], limit: int
    ) -> None:
        self.port = 0
        self._tls = tls
        self._connected = connected
        self._limit = limit
        self._tasks = TaskOwner("tls handshakes")
        self._refused = _RefusedClients(asyncio.get_running_loop())
        self._listener: _PlainListener | None = None

    @classmethod
    async def listen(
        cls,
        host: str,
        port: int,
        tls: TlsServer,
        connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
        limit: int,
        *,
        shares_port: bool = False,
    ) -> TlsStreamServer:
        loop = asyncio.get_running_loop()
        server = cls(tls, connected, limit)
        sock = await bound_socket(loop, host, port, shares_port=shares_port)
        server._listener = _PlainListener(sock, server._accepted, loop)
        server.port = server._listener.port
        server._listener.start()
        return server

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        is_full = len(self._tasks) + len(self._refused) >= HANDSHAKES_MAX
        if is_full or self._tasks.spawn(self._open(sock, peer), "handshake") is None:
            sock.close()

    async def _open(self, sock: socket.socket, peer: str) -> None:
        self._tls.refresh()
        loop = asyncio.get_running_loop()
        handshake = _Handshake(self._tls.context)
        reader = asyncio.StreamReader(limit=self._limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, self._connected, loop=loop)
        copy: socket.socket | None = None
        try:
            copy = sock.dup()  # stays open when asyncio closes the other one
            await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=cast(ssl.SSLContext, handshake),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            log.info("TLS handshake failed", extra={"peer": peer, "reason": _words(error)})
            sock.close()
            if copy is not None and handshake.alert:
                self._refused.add(copy, handshake.alert)
                copy = None
        finally:
            if copy is not None:
                copy.close()

    async def close(self) -> None:
        """Stop accepting; open connections belong to the owner."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._tasks.close()
        self._refused.close()


class _Handshake:
    """The context of one handshake, as far as asyncio uses it. It keeps the alert, which asyncio drops."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.alert = b""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> ssl.SSLObject:
        def keep() -> None:
            self.alert = outgoing.read()

        made = self._context.wrap_bio(incoming, outgoing, server_side, server_hostname)
        assert isinstance(made, ServerObject)
        made.on_refused = keep
        return made


class _PlainListener(SocketListener):
    """Passes the plain socket on."""

    def __init__(
        self,
        sock: socket.socket,
        on_socket: Callable[[socket.socket, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(sock, _no_handler, loop)
        self._on_socket = on_socket

    def accepted(self, sock: socket.socket, peer: str) -> None:
        self._on_socket(sock, peer)


def _no_handler(stream: Stream) -> StreamHandler:
    raise AssertionError("this protocol has no stream")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "tls error")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
