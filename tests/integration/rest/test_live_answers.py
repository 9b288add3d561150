"""Answers without an end: the first byte at once, an end on stop and on revoked rights, bounds, clients that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import pytest

from anabranch.model.errors import NotFound
from anabranch.rest.access import AccessFilter
from anabranch.rest.event_stream import HEARTBEAT, event, live_response
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.router import Route, Router
from anabranch.rest.server import HttpServer
from anabranch.rest.settings import HttpSettings
from anabranch.runtime.clock import SystemClock
from anabranch.security.access_control import AccessControl
from anabranch.security.authentication import Authenticator, Credentials, Identity, Unauthenticated
from anabranch.security.permissions import SIGNED_IN
from tests.support.processes.in_process_cluster import until

SETTINGS = HttpSettings(port=0, streams_max=2, read_seconds=0.5, handle_seconds=0.5, connections_max=10)


class Source:
    """A live route that the test feeds."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def open(self, request: Request) -> Response:
        return live_response(self._events())

    async def _events(self) -> AsyncGenerator[bytes]:
        try:
            while True:
                found = await self.events.get()
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            self.closed.set()


async def flood(request: Request) -> Response:
    async def events() -> AsyncGenerator[bytes]:
        while True:
            yield b"x" * 65_536

    return live_response(events())


async def plain(request: Request) -> Response:
    return json_response({"ok": True})


@pytest.fixture
def source() -> Source:
    return Source()


def router(source: Source) -> Router:
    return Router(
        [
            Route("GET", "/live", source.open, "", SIGNED_IN),
            Route("GET", "/flood", flood, "", SIGNED_IN),
            Route("GET", "/plain", plain, "", SIGNED_IN),
        ]
    )


@pytest.fixture
async def server(source: Source) -> AsyncIterator[HttpServer]:
    async with HttpServer(router(source), SETTINGS) as made:
        yield made


class Viewer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: HttpServer, path: str = "/live", headers: str = "") -> Viewer:
        viewer = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        viewer.writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode())
        return viewer

    async def head(self) -> str:
        async with asyncio.timeout(5):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def piece(self) -> bytes:
        """The next chunk; empty at the end of the answer."""
        async with asyncio.timeout(5):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]


async def test_each_event_is_sent_before_the_next_exists(server: HttpServer, source: Source) -> None:
    viewer = await Viewer.open(server)
    head = await viewer.head()
    assert "text/event-stream" in head and "content-length" not in head.lower() and "X-Accel-Buffering: no" in head
    for number in range(3):
        source.events.put_nowait(event("tick", {"n": number}, number))
        assert await viewer.piece() == b'event: tick\nid: %d\ndata: {"n":%d}\n\n' % (number, number)
    source.events.put_nowait(HEARTBEAT)
    assert await viewer.piece() == HEARTBEAT
    assert server.stats().streams == 1
    viewer.writer.close()


async def test_stream_outlives_the_deadline_of_requests(server: HttpServer, source: Source) -> None:
    viewer = await Viewer.open(server)
    await viewer.head()
    await asyncio.sleep(2 * SETTINGS.handle_seconds)
    source.events.put_nowait(HEARTBEAT)
    assert await viewer.piece() == HEARTBEAT
    viewer.writer.close()


async def test_error_of_the_source_is_the_last_event(server: HttpServer, source: Source) -> None:
    viewer = await Viewer.open(server)
    await viewer.head()
    source.events.put_nowait(NotFound("deleted"))
    assert b'event: bye\ndata: {"error":"not-found"' in await viewer.piece()
    assert await viewer.piece() == b""
    viewer.writer.write(b"GET /plain HTTP/1.1\r\nHost: h\r\n\r\n")  # the connection is kept
    assert " 200 " in await viewer.head()
    viewer.writer.close()


async def test_stop_ends_streams_at_once_and_closes_their_sources(source: Source) -> None:
    server = HttpServer(router(source), SETTINGS)
    await server.start()
    viewer = await Viewer.open(server)
    await viewer.head()
    source.events.put_nowait(HEARTBEAT)
    await viewer.piece()
    async with asyncio.timeout(5):
        await server.stop(seconds=60)  # it does not wait for the streams
    assert b'"error":"stopping"' in await viewer.piece()
    assert await viewer.piece() == b"" and source.closed.is_set()


async def test_source_is_closed_when_the_client_is_gone(server: HttpServer, source: Source) -> None:
    viewer = await Viewer.open(server)
    await viewer.head()
    viewer.writer.transport.abort()
    async with asyncio.timeout(5):
        while not source.closed.is_set():
            source.events.put_nowait(HEARTBEAT)
            await asyncio.sleep(0.02)
    assert server.stats().streams == 0


async def test_client_that_does_not_read_is_dropped(server: HttpServer) -> None:
    viewer = await Viewer.open(server, "/flood")
    await viewer.head()
    async with asyncio.timeout(10):
        await until(lambda: server.stats().streams == server.stats().connections == 0)
    viewer.writer.close()


async def test_streams_are_bounded_and_other_requests_go_on(server: HttpServer, source: Source) -> None:
    viewers = [await Viewer.open(server) for _ in range(2)]
    for viewer in viewers:
        assert " 200 " in await viewer.head()
    third = await Viewer.open(server)
    head = await third.head()
    assert " 503 " in head and "Retry-After" in head
    other = await Viewer.open(server, "/plain")
    assert " 200 " in await other.head()
    for one in (*viewers, third, other):
        one.writer.close()


async def test_head_of_a_stream_has_no_body(server: HttpServer) -> None:
    viewer = Viewer(*await asyncio.open_connection("127.0.0.1", server.port))
    viewer.writer.write(b"HEAD /live HTTP/1.1\r\nHost: h\r\n\r\nGET /plain HTTP/1.1\r\nHost: h\r\n\r\n")
    assert "text/event-stream" in await viewer.head()
    assert "application/json" in await viewer.head()
    viewer.writer.close()


class Revocable:
    """The token method of this test, whose only token can be revoked."""

    name = "token"

    def __init__(self) -> None:
        self.is_valid = True

    async def identify(self, credentials: Credentials, now_ms: int) -> Identity:
        if not self.is_valid:
            raise Unauthenticated("the token was revoked")
        return Identity("viewer", self.name)


async def test_stream_ends_when_credentials_end(source: Source) -> None:
    method = Revocable()
    guard = AccessControl(authenticator=Authenticator({"token": method}))
    access = AccessFilter(guard, SystemClock())
    async with HttpServer(router(source), replace(SETTINGS, read_seconds=5.0), access) as server:
        viewer = await Viewer.open(server, headers="Authorization: Bearer t\r\n")
        await viewer.head()
        source.events.put_nowait(HEARTBEAT)
        assert await viewer.piece() == HEARTBEAT
        method.is_valid = False
        found = b""
        async with asyncio.timeout(10):
            while b"bye" not in found:
                source.events.put_nowait(HEARTBEAT)
                found = await viewer.piece()
                await asyncio.sleep(0.02)
        assert b'"error":"authentication"' in found and await viewer.piece() == b""
        assert source.closed.is_set()
