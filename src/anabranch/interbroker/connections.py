"""Pool of HTTP connections to the other brokers: a few per broker, each used by one call at a time.

The other broker may have closed an idle connection. When that shows before the first byte of an answer, the caller
repeats the call on a fresh connection; the nonce of its signature makes the receiver accept it once.
"""

from __future__ import annotations

import asyncio
import ssl

from anabranch.interbroker.errors import PeerNotConnected
from anabranch.runtime.clock import Clock
from anabranch.runtime.http_client import HttpConnection

CONNECT_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 << 20
IDLE_SECONDS = 20.0  # shorter than the server's idle timeout
IDLE_MAX = 8  # connections per broker


class PeerConnections:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle: dict[tuple[str, int], list[HttpConnection]] = {}
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def idle(self, host: str, port: int) -> HttpConnection | None:
        """The connection that was used last, if it is still open."""
        self._prune()
        connections = self._idle.get((host, port), [])
        while connections:
            connection = connections.pop()
            if connection.is_reusable:
                return connection
            connection.abort()
        return None

    async def fresh(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> HttpConnection:
        """Raises PeerNotConnected."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await HttpConnection.open(host, port, tls=tls, body_bytes_max=ANSWER_BYTES_MAX)
        except (OSError, TimeoutError) as error:
            raise PeerNotConnected(f"broker at {host}:{port} cannot be reached: {error or 'timed out'}") from error

    def release(self, host: str, port: int, connection: HttpConnection) -> None:
        """After a complete exchange: keeps the connection for the next call."""
        connections = self._idle.setdefault((host, port), [])
        if not connection.is_reusable or self._is_closed or len(connections) >= IDLE_MAX:
            connection.abort()
            return
        connection.idle_since = self._clock.monotonic()
        connections.append(connection)

    def _prune(self) -> None:
        """Closes connections that were idle for too long; the oldest are first in their list."""
        before = self._clock.monotonic() - IDLE_SECONDS
        for place, connections in list(self._idle.items()):
            while connections and connections[0].idle_since <= before:
                connections.pop(0).abort()
            if not connections:
                del self._idle[place]
