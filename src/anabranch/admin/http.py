"""Pool of HTTP connections for the asyncio admin client: one request at a time on each, kept open for the next.

The deadline of a request covers connecting, TLS, sending, reading and redirects; it is the caller's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from anabranch.admin.client import PROBE_SECONDS, Answer, failed_exchange, tls_expected
from anabranch.admin.redirect import Place
from anabranch.runtime.http_client import ClosedBeforeAnswer, HttpConnection, TlsExpected
from anabranch.runtime.reach import expects_tls

IDLE_MAX = 8  # connections kept for each broker
ANSWER_BYTES_MAX = 256 * 1024 * 1024
CLOSE_SECONDS = 1.0


class HttpConnections:
    """Connections to brokers. `close` closes them all."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._idle: dict[Place, list[HttpConnection]] = {}

    async def exchange(
        self, at: Place, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Raises Unreachable, TlsFailed or WrongPort."""
        body = data or b"" if data is not None or method in ("PUT", "POST") else None
        connection = None
        is_complete = False
        try:
            connection = await self._connection(at)
            answer = await connection.exchange(method, target, [("Host", at.authority), *headers.items()], body)
            is_complete = True
            return Answer(answer.status, answer.body, answer.headers)
        except TlsExpected as error:
            raise tls_expected(str(at)) from error
        except ClosedBeforeAnswer as error:
            if at.scheme == "http" and await expects_tls(at.host, at.port, PROBE_SECONDS):
                raise tls_expected(str(at)) from error
            raise failed_exchange(str(at), error) from error
        except OSError as error:
            raise failed_exchange(str(at), error) from error
        finally:
            if connection is not None:
                self._release(at, connection, is_complete)

    async def _connection(self, at: Place) -> HttpConnection:
        idle = self._idle.get(at, [])
        while idle:
            connection = idle.pop()
            if connection.is_reusable:
                return connection
            connection.close()
        tls = (self._tls or ssl.create_default_context()) if at.scheme == "https" else None
        return await HttpConnection.open(at.host, at.port, tls=tls, body_bytes_max=ANSWER_BYTES_MAX)

    def _release(self, at: Place, connection: HttpConnection, is_complete: bool) -> None:
        idle = self._idle.setdefault(at, [])
        if is_complete and connection.is_reusable and len(idle) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        connections = [connection for idle in self._idle.values() for connection in idle]
        self._idle.clear()
        for connection in connections:
            connection.close()
        for connection in connections:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await connection.wait_closed()
            except (OSError, TimeoutError):
                connection.abort()
