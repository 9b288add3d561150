"""Arbitrary bytes: the HTTP port answers or closes in time, and keeps serving other connections."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.router import Route, Router
from anabranch.rest.server import HttpServer
from anabranch.rest.settings import HttpSettings

GOOD = b"PUT /echo/a%2Fb?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"PUT /echo/a%2Fb?x=1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
)


async def echo(request: Request) -> Response:
    return json_response([request.params["name"], request.query.get("x"), request.body.decode("latin-1")])


ROUTER = Router([Route("PUT", "/echo/{name}", echo, ""), Route("GET", "/echo/{name}", echo, "")])
SETTINGS = HttpSettings(port=0, read_seconds=0.1, idle_seconds=0.1, body_bytes_max=1024, header_bytes_max=1024)


async def exchange(server: HttpServer, pieces: list[bytes]) -> bytes:
    """Send the pieces one by one, then end the sending side; whatever comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([GOOD, CHUNKED]), st.lists(st.integers(0, 1000), max_size=6))
def test_any_chunking_gives_the_same_request(data: bytes, places: list[int]) -> None:
    async def check() -> None:
        async with HttpServer(ROUTER, SETTINGS) as server:
            answer = await exchange(server, cut(data, places))
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b'["a/b","1","hello"]')

    asyncio.run(check())


def mutated(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    made = bytearray(data)
    for place, byte in changes:
        made[place % len(made)] = byte
    return bytes(made)


MUTATED = st.builds(
    mutated,
    st.sampled_from([GOOD, CHUNKED]),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), min_size=1, max_size=5),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(MUTATED, st.binary(max_size=200)), min_size=1, max_size=10))
def test_bad_bytes_do_not_affect_other_connections(messages: list[bytes]) -> None:
    async def check() -> None:
        async with HttpServer(ROUTER, SETTINGS) as server:
            answers = await asyncio.gather(*(exchange(server, [message]) for message in messages))
            for answer in answers:
                assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
                assert not answer.startswith(b"HTTP/1.1 500")  # 501, for an odd Transfer-Encoding, is right
            assert (await exchange(server, [GOOD])).startswith(b"HTTP/1.1 200")
            assert server.stats().failures == 0

    asyncio.run(check())
