"""A client that a TLS port refuses reads the alert, also if it has sent its request before, as with TLS 1.3."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch.runtime.net import Stream, StreamHandler
from anabranch.runtime.net_tls import REFUSED_SECONDS, TlsNetwork, TlsStreamServer
from anabranch.runtime.tls import TlsFiles, TlsServer
from tests.support.in_memory.credentials import Authority

HOST = "127.0.0.1"
KINDS = ("streams", "asyncio")
REQUEST = b"x" * 200_000  # more than a server reads at once
BAD_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"  # a handshake record with a ClientHello of one byte
SECONDS = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


@asynccontextmanager
async def port_of(kind: str, authority: Authority) -> AsyncIterator[int]:
    """A port that demands a client certificate."""
    files = authority.issue("server")
    tls = TlsServer(TlsFiles(files.certificate, files.key, ca=authority.path, require_client_certificate=True))
    if kind == "streams":
        listener = await TlsNetwork(tls).listen(HOST, 0, _refuse)
        listener.start()
        try:
            yield listener.port
        finally:
            listener.close()
    else:
        server = await TlsStreamServer.listen(HOST, 0, tls, lambda reader, writer: writer.close(), 1024)
        try:
            yield server.port
        finally:
            await server.close()


def _refuse(stream: Stream) -> StreamHandler:
    raise AssertionError("the handshake must fail")


def end_without_certificate(port: int, authority: Authority, version: ssl.TLSVersion) -> OSError | None:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.minimum_version = context.maximum_version = version
    try:
        with (
            socket.create_connection((HOST, port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as client,
        ):
            client.sendall(REQUEST)
            client.recv(1)
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", KINDS)
async def test_refused_client_reads_the_alert(kind: str, version: ssl.TLSVersion, authority: Authority) -> None:
    async with port_of(kind, authority) as port:
        for _ in range(5):
            error = await asyncio.to_thread(end_without_certificate, port, authority, version)
            assert isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""), error


@pytest.mark.parametrize("kind", KINDS)
async def test_refused_client_that_stays_is_closed_after_a_while(kind: str, authority: Authority) -> None:
    """The client keeps its side open."""
    async with port_of(kind, authority) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        async with asyncio.timeout(SECONDS):
            writer.write(BAD_HELLO)
            assert (await reader.read()).startswith(b"\x15\x03")  # an alert, then the end
            began = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionError):
                while True:  # until the server's close resets the connection
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began < REFUSED_SECONDS + 5
        writer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_closed_port_keeps_no_refused_clients(kind: str, authority: Authority) -> None:
    async with port_of(kind, authority) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(BAD_HELLO)
        async with asyncio.timeout(SECONDS):
            assert (await reader.read()).startswith(b"\x15\x03")
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(REFUSED_SECONDS / 2):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
    writer.close()
