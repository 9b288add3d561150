"""Outgoing connections on the network port, with the same `Stream` as a listener.

Plain connections drive their socket directly, so that lists of buffers are sent without a copy; TLS connections use
asyncio's transports. The caller bounds every wait; a cancelled one leaves no socket behind.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

from anabranch.runtime.net import Buffer, MakeHandler, SocketStream, StreamHandler, words_of


async def dial(host: str, port: int, make_handler: MakeHandler, tls: ssl.SSLContext | None = None) -> None:
    """Returns when connected and the handler has its stream. Raises OSError (including ssl.SSLError)."""
    loop = asyncio.get_running_loop()
    if tls is not None:
        await loop.create_connection(lambda: TransportStream(f"{host}:{port}", make_handler), host, port, ssl=tls)
        return
    stream = SocketStream(await connected_socket(loop, host, port), f"{host}:{port}", loop)
    stream.start(make_handler(stream))


async def connected_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A non-blocking socket, connected to the first address of the name that answers."""
    failure = OSError(f"host name {host} has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


class TransportStream(asyncio.BufferedProtocol):
    """A transport of asyncio as a `Stream`."""

    certificate_name: str | None = None

    def __init__(self, peer: str, make_handler: MakeHandler) -> None:
        self.peer = peer
        self.unsent_bytes = 0
        self._make_handler = make_handler
        self._handler: StreamHandler | None = None
        self._transport: asyncio.Transport | None = None

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._handler = self._make_handler(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._handler is not None
        return self._handler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        assert self._handler is not None
        self._handler.received(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._handler is not None
        self._handler.closed(
            "closed by peer" if exc is None else words_of(exc) if isinstance(exc, OSError) else str(exc)
        )

    # -- the owner's side

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
            self.unsent_bytes = self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
