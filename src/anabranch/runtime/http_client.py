"""HTTP/1.1 client on h11: one connection, one request at a time, kept open for the next request.

`interbroker` and `admin` keep pools of these connections; deadlines are the caller's. All failures are OSErrors:

| error | means |
|---|---|
| `ClosedBeforeAnswer` | the server closed before the first byte of an answer, as it may do with an idle connection |
| `BadAnswer` | the answer is not HTTP/1.1, ends early, or has more than `body_bytes_max` bytes |
| `TlsExpected` | the answer is a TLS alert: the port accepts only TLS |
| `ssl.SSLError` | also when the server refuses the client's certificate, which TLS 1.3 does after the handshake |
| other OSErrors | of the socket |
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import h11

_READ_BYTES = 64 * 1024
CUT_ANSWER = "closed before the answer was complete"


class ClosedBeforeAnswer(ConnectionError):
    pass


class BadAnswer(ConnectionError):
    pass


class TlsExpected(BadAnswer):
    pass


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class HttpConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, body_bytes_max: int) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self._body_bytes_max = body_bytes_max
        self.idle_since = 0.0  # for the pool that keeps the connection

    @classmethod
    async def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None = None, body_bytes_max: int) -> Self:
        return cls(*await asyncio.open_connection(host, port, ssl=tls), body_bytes_max=body_bytes_max)

    @property
    def is_reusable(self) -> bool:
        """The last exchange is complete, and neither side has closed."""
        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    def abort(self) -> None:
        with suppress(OSError):
            self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    async def exchange(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> HttpAnswer:
        """`headers` name the host. A body, even an empty one, is sent with its length."""
        length = [] if body is None else [("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=target, headers=[*headers, *length])
        events = (request, h11.Data(body), h11.EndOfMessage()) if body else (request, h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        try:
            return await self._answer()
        except h11.RemoteProtocolError as error:
            is_cut = self._reader.at_eof()
            raise BadAnswer(CUT_ANSWER if is_cut else "the answer is not HTTP/1.1") from error

    async def _answer(self) -> HttpAnswer:
        http = self._http
        status, headers, body, size, has_begun = 0, dict[str, str](), list[bytes](), 0, False
        while True:
            event: Any = http.next_event()
            if event is h11.NEED_DATA:
                data = await (self._reader.read(_READ_BYTES) if has_begun else self._first_bytes())
                if not has_begun and data.startswith(b"\x15\x03"):  # a TLS alert
                    raise TlsExpected("the port expects TLS")
                http.receive_data(data)
                has_begun = True
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > self._body_bytes_max:
                    raise BadAnswer(f"the answer has more than {self._body_bytes_max} bytes")
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                if http.our_state is h11.DONE and http.their_state is h11.DONE:
                    http.start_next_cycle()
                return HttpAnswer(status, headers, b"".join(body))
            elif isinstance(event, h11.ConnectionClosed):
                raise BadAnswer(CUT_ANSWER)

    async def _first_bytes(self) -> bytes:
        try:
            await self._writer.drain()
            data = await self._reader.read(_READ_BYTES)
        except ConnectionError as error:
            raise ClosedBeforeAnswer(error.strerror or str(error)) from error
        if not data:
            raise ClosedBeforeAnswer("closed before the answer")
        return data
