"""Kept HTTP connections to other brokers: a few per broker, each used by one errand at a time. Knows h11, no errands.

A line that was idle may have been closed by the other side meanwhile; whoever finds it dead before the first byte of an
answer tries again on a fresh one (what it asks is signed with a number that is accepted once).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import h11

from anabranch.broker.peers import PeerCallUnanswered, PeerNotConnected
from anabranch.runtime.clock import Clock

CONNECT_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 << 20
IDLE_SECONDS = 20.0  # less than the other side keeps an idle connection
IDLE_MAX = 8  # lines per broker
_READ_BYTES = 64 * 1024

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers by lower-case name, body."""


class WasClosed(ConnectionError):
    """Nothing of an answer came: the line had been closed."""


class PeerConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.idle_since = 0.0

    @property
    def is_sound(self) -> bool:
        """Ready for another request."""
        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    def drop(self) -> None:
        with suppress(OSError):
            self._writer.transport.abort()

    async def exchange(self, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Raises WasClosed, other OSErrors, h11.RemoteProtocolError, NoAnswer."""
        http = self._http
        request = h11.Request(method="POST", target=path, headers=[*headers, ("Content-Length", str(len(body)))])
        pieces = (http.send(piece) or b"" for piece in (request, h11.Data(body), h11.EndOfMessage()))
        self._writer.write(b"".join(pieces))
        status, found, answer, has_begun = 0, dict[str, str](), bytearray(), False
        while True:
            event: Any = http.next_event()
            if event is h11.NEED_DATA:
                data = await (self._reader.read(_READ_BYTES) if has_begun else self._first())
                has_begun = True
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                answer += event.data
                if len(answer) > ANSWER_BYTES_MAX:
                    raise PeerCallUnanswered(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                if http.our_state is h11.DONE and http.their_state is h11.DONE:
                    http.start_next_cycle()
                return status, found, bytes(answer)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("closed before the answer was complete")

    async def _first(self) -> bytes:
        """The first bytes of an answer; WasClosed when there are none."""
        try:
            await self._writer.drain()
            data = await self._reader.read(_READ_BYTES)
        except ConnectionError as error:
            raise WasClosed(str(error)) from error
        if not data:
            raise WasClosed("closed before the answer")
        return data


class Lines:
    """All lines of one broker to the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle: dict[tuple[str, int], list[PeerConnection]] = {}
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        for lines in self._idle.values():
            for line in lines:
                line.drop()
        self._idle.clear()

    def kept(self, host: str, port: int) -> PeerConnection | None:
        """The line that was used last, if one is good."""
        self._prune()
        lines = self._idle.get((host, port), [])
        while lines:
            line = lines.pop()
            if line.is_sound:
                return line
            line.drop()
        return None

    async def fresh(self, host: str, port: int) -> PeerConnection:
        """Raises NotConnected."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return PeerConnection(*await asyncio.open_connection(host, port))
        except (OSError, TimeoutError) as error:
            raise PeerNotConnected(f"broker at {host}:{port} cannot be reached: {error or 'timed out'}") from error

    def keep(self, host: str, port: int, line: PeerConnection) -> None:
        lines = self._idle.setdefault((host, port), [])
        if not line.is_sound or self._is_closed or len(lines) >= IDLE_MAX:
            line.drop()
            return
        line.idle_since = self._clock.monotonic()
        lines.append(line)

    def _prune(self) -> None:
        """Lines that were idle for too long; the oldest stand first."""
        before = self._clock.monotonic() - IDLE_SECONDS
        for place, lines in list(self._idle.items()):
            while lines and lines[0].idle_since <= before:
                lines.pop(0).drop()
            if not lines:
                del self._idle[place]
