"""Connections between brokers are reused; one that the other broker closed while idle is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch.broker.peers import PeerCallRefused, PeerCallUnanswered, PeerNotConnected
from anabranch.interbroker import connections
from anabranch.interbroker.client import PeerClient
from anabranch.interbroker.signature import ANSWER_HEADER, HEADER, SECRET_BYTES, Secret, Signature, sign_answer
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.runtime.clock import SystemClock

SECRET, ME, OTHER = Secret(b"k" * SECRET_BYTES), BrokerIncarnation("me", 1), BrokerIncarnation("other", 1)


class Other:
    """The other broker: answers every call, and can close its connections."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.closes_before_answering = False
        self.answer = (200, b"7")
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        while (head := await reader.readuntil(b"\r\n\r\n")) and not self.closes_before_answering:
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
            found = {name.lower(): value for name, value in headers.items()}
            await reader.readexactly(int(found["content-length"]))
            status, body = self.answer
            signed = sign_answer(SECRET, Signature.load(found[HEADER]), status, body)
            lines = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{ANSWER_HEADER}: {signed}\r\n\r\n"
            writer.write(lines.encode() + body)
        writer.close()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


@asynccontextmanager
async def other() -> AsyncIterator[Other]:
    made = Other()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await made.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.close()


async def call(client: PeerClient, broker: Other) -> int:
    return int(await client.call(broker.url, OTHER, "a.b", {"x": 1}))


async def test_connection_is_reused() -> None:
    async with other() as broker:
        client = PeerClient(SECRET, ME, SystemClock())
        assert [await call(client, broker) for _ in range(5)] == [7] * 5
        assert broker.connections == 1
        assert await asyncio.gather(*(call(client, broker) for _ in range(3))) == [7] * 3
        assert broker.connections == 3
        client.close()


async def test_connection_closed_while_idle_is_replaced() -> None:
    async with other() as broker:
        client = PeerClient(SECRET, ME, SystemClock())
        await call(client, broker)
        broker.close()
        assert await call(client, broker) == 7
        client.close()


async def test_connection_idle_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    async with other() as broker:
        client = PeerClient(SECRET, ME, SystemClock())
        assert [await call(client, broker) for _ in range(2)] == [7, 7]
        assert broker.connections == 2
        client.close()


async def test_close_on_fresh_connection_means_unanswered() -> None:
    async with other() as broker:
        client = PeerClient(SECRET, ME, SystemClock())
        broker.closes_before_answering = True
        with pytest.raises(PeerCallUnanswered) as refused:
            await call(client, broker)
        assert not isinstance(refused.value, PeerNotConnected)  # it may have happened
        client.close()
    with pytest.raises(PeerNotConnected):
        await call(client, broker)


@pytest.mark.parametrize("field", [b"error", b"code"])  # brokers of an earlier version say `code`
async def test_refusal_of_a_broker_of_any_version_keeps_its_code(field: bytes) -> None:
    async with other() as broker:
        broker.answer = (503, b'{"reason":"moving","%b":"served-elsewhere"}' % field)
        client = PeerClient(SECRET, ME, SystemClock())
        with pytest.raises(PeerCallRefused) as refused:
            await call(client, broker)
        assert (refused.value.code, refused.value.reason, refused.value.status) == ("served-elsewhere", "moving", 503)
        assert refused.value.retryable
        client.close()
