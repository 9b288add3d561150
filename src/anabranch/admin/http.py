"""HTTP for asyncio: one request, one answer, connections kept open. Knows h11 and sockets; no verbs, no JSON.

Every request has a deadline over all of it: dialling, TLS, sending, reading, redirects. An answer is bounded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import h11

from anabranch.admin.client import Answer
from anabranch.admin.errors import Unreachable
from anabranch.admin.redirect import Place

IDLE_MAX = 8  # connections kept for each broker
ANSWER_BYTES_MAX = 256 * 1024 * 1024
_READ_BYTES = 64 * 1024


class _Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(our_role=h11.CLIENT)

    @property
    def is_fresh(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()

    async def exchange(self, request: h11.Request, data: bytes) -> Answer:
        http = self.http
        parts = [http.send(request), http.send(h11.Data(data)) if data else b"", http.send(h11.EndOfMessage())]
        self.writer.writelines([part for part in parts if part])
        await self.writer.drain()
        status, headers, body, size = 0, dict[str, str](), list[bytes](), 0
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await self.reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > ANSWER_BYTES_MAX:
                    raise Unreachable(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, b"".join(body), headers)

    def renew(self) -> bool:
        """True when another request may follow."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return self.is_fresh


class Lines:
    """Connections to brokers. `close` ends them all."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._idle: dict[Place, list[_Line]] = {}

    async def exchange(
        self, at: Place, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Raises Unreachable. The deadline is the caller's."""
        head = {"Host": at.authority, **headers}
        if data is not None or method in ("PUT", "POST"):
            head["Content-Length"] = str(len(data or b""))
        request = h11.Request(method=method, target=target, headers=list(head.items()))
        line = None
        is_kept = False
        try:
            line = await self._line(at)
            answer = await line.exchange(request, data or b"")
            is_kept = line.renew()
            return answer
        except ssl.SSLError as error:
            raise Unreachable(f"TLS with {at} failed: {error.reason or error}") from error
        except (OSError, h11.RemoteProtocolError) as error:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no answer from {at}: {words}") from error
        finally:
            if line is not None:
                self._put_back(at, line, is_kept)

    async def _line(self, at: Place) -> _Line:
        idle = self._idle.get(at, [])
        while idle:
            line = idle.pop()
            if line.is_fresh:
                return line
            line.writer.close()
        tls = (self._tls or ssl.create_default_context()) if at.scheme == "https" else None
        return _Line(*await asyncio.open_connection(at.host, at.port, ssl=tls))

    def _put_back(self, at: Place, line: _Line, is_kept: bool) -> None:
        idle = self._idle.setdefault(at, [])
        if is_kept and len(idle) < IDLE_MAX:
            idle.append(line)
        else:
            line.writer.close()

    async def close(self) -> None:
        lines = [line for idle in self._idle.values() for line in idle]
        self._idle.clear()
        for line in lines:
            line.writer.close()
        for line in lines:
            try:
                async with asyncio.timeout(1.0):
                    await line.writer.wait_closed()
            except (OSError, TimeoutError):
                line.writer.transport.abort()  # it is being closed; nobody waits for its last words
