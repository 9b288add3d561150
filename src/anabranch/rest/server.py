"""HTTP/1.1 server on asyncio and h11: keep-alive, limits, deadlines.

`Exchange` drives one connection, `HttpServer` owns all of them. h11 parses, and malformed requests end there. Every
wait has a deadline and every buffer a bound, so a slow or silent client costs one idle task.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

import h11

from anabranch.broker.placement import ServedElsewhere
from anabranch.model.errors import BadRequest, Error
from anabranch.rest.access import AccessFilter
from anabranch.rest.encoding import encoded
from anabranch.rest.errors import (
    BodyTooLarge,
    CannotListen,
    TimedOut,
    TooManyStreams,
    error_response,
    internal_error,
    redirect,
    refusal,
)
from anabranch.rest.event_stream import closable, ended
from anabranch.rest.http_message import Request, Response
from anabranch.rest.isolation import IsolationRules
from anabranch.rest.relay import Relay, wants_relay
from anabranch.rest.router import Match, Router, WrongMethod
from anabranch.rest.settings import HttpSettings
from anabranch.runtime.logs import get_logger
from anabranch.runtime.net_tls import TlsStreamServer
from anabranch.runtime.tasks import TaskOwner
from anabranch.runtime.tls import TlsServer, common_name

log = get_logger(__name__)

_READ_BYTES = 64 * 1024
_WHOLE_BYTES_MAX = 256 * 1024
_PIPELINE_GRACE_S = 2.0

# Of every answer, unless the route says otherwise. Pages of other origins may neither read nor frame it.
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)

_FULL_BODY = refusal("overloaded", "too many HTTP connections; close some, or raise http.connections_max", 503).body
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)  # written without reading the request: no connection state is made for it

Serve = Callable[[Request], Awaitable[Response]]
Work = Callable[[], Awaitable[Response]]
Answered = Callable[[Work], Awaitable[Response]]
"""Does the work and turns what it raises into an answer."""


@dataclass(frozen=True, slots=True)
class InternalHandler:
    """Serves every path under `prefix`, past the routes and the access filter: it authenticates its callers itself."""

    prefix: str
    serve: Callable[[Request, Answered], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class HttpStats:
    connections: int
    requests: int
    failures: int  # answers with 5xx
    streams: int = 0  # live answers that are being sent


async def answer(
    router: Router,
    request: Request,
    seconds_max: float,
    access: AccessFilter | None = None,
    internal: InternalHandler | None = None,
    isolation: IsolationRules | None = None,
    relay: Relay | None = None,
) -> Response:
    """Routes, checks access, handles, translates errors. There is an answer whatever the handler raises."""
    if internal is not None and request.path.startswith(internal.prefix):
        return await internal.serve(request, lambda work: _answered(work, request, seconds_max))
    rules = isolation or IsolationRules()
    return await _answered(lambda: _handled(router, request, access, rules), request, seconds_max, relay)


async def _answered(work: Work, request: Request, seconds_max: float, relay: Relay | None = None) -> Response:
    try:
        async with asyncio.timeout(seconds_max):
            return await work()
    except ServedElsewhere as error:
        if error.address is None:
            return error_response(error)
        if relay is None or not wants_relay(request):
            return redirect(request, error.address)
        owner = error.address
        return await _answered(lambda: relay.forward(request, owner, seconds_max), request, seconds_max)
    except Error as error:
        return error_response(error)
    except TimeoutError:
        return error_response(TimedOut(f"no answer within {seconds_max:g} seconds"))
    except Exception:  # a bug in a handler must not close the connection
        log.exception(
            "request failed with an unexpected exception", extra={"method": request.method, "path": request.path}
        )
        return internal_error()


async def _handled(
    router: Router, request: Request, access: AccessFilter | None, isolation: IsolationRules
) -> Response:
    found = _found(router, request)
    route = found.route if isinstance(found, Match) else None
    if isinstance(found, Match):
        request = replace(request, params=found.params)
    if access is not None:  # first, so that a caller without access does not even learn which paths exist
        request = replace(request, role=await access.admit(request, route))
    isolation.check(request, route, authenticates=access is not None)
    if request.method == "OPTIONS":
        return _options(router, request)
    if isinstance(found, Match):
        response = await found.route.handler(request)
        if access is not None and response.is_live and response.pieces is not None:
            response = replace(response, pieces=access.while_admitted(request, found.route, response.pieces))
        return response
    raise found


def _found(router: Router, request: Request) -> Match | Error:
    try:
        return router.match(request.method, request.path)
    except Error as error:
        return error


def _options(router: Router, request: Request) -> Response:
    try:
        router.match("OPTIONS", request.path)
    except WrongMethod as error:
        return Response(200, headers=(("Allow", ", ".join(error.allowed)),))
    raise AssertionError("no route serves OPTIONS itself")


class Exchange:
    """One connection: requests one after another until one side closes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: HttpSettings, serve: Serve
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._settings = settings
        self._serve = serve
        self._certificate_name = common_name(writer.get_extra_info("peercert"))
        self._is_encrypted = writer.get_extra_info("ssl_object") is not None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.header_bytes_max)
        self.host = _host(writer)
        self.is_idle = True
        self.is_closing = False
        self.is_live = False  # sends a live answer, which has no end of its own
        self._live = asyncio.timeout(None)

    async def run(self) -> None:
        try:
            while not self.is_closing and await self._one():
                pass
        except (ConnectionError, TimeoutError):
            log.debug("http client disconnected")
        finally:
            self._writer.close()
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_PIPELINE_GRACE_S):
                    await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()

    def end_live(self) -> None:
        """Ends the live answer that is being sent."""
        self._live.reschedule(0)

    async def _one(self) -> bool:
        """Serves one request; False if the connection must be closed."""
        self.is_idle = True
        head_only = False
        try:
            head = await self._head()
            if head is None:
                return False
            self.is_idle = False
            head_only = head.method == b"HEAD"
            async with asyncio.timeout(self._settings.read_seconds):
                request = replace(
                    _request(head, await self._body(head)),
                    certificate_name=self._certificate_name,
                    is_encrypted=self._is_encrypted,
                )
            response = await self._serve(request)
        except h11.RemoteProtocolError as error:
            if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return False
            status = error.error_status_hint
            code = "headers-too-large" if status == 431 else "bad-request"
            await self._send(refusal(code, f"not HTTP/1.1: {error}", status), False, close=True)
            return False
        except (BodyTooLarge, BadRequest) as error:
            await self._send(error_response(error), head_only, close=True)
            return False
        await self._send(response, head_only, close=self.is_closing)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _head(self) -> h11.Request | None:
        """The next request line and headers: the first byte may take `idle_seconds`, the rest `read_seconds`."""
        seconds = self._settings.idle_seconds if self._http.trailing_data[0] == b"" else self._settings.read_seconds
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(seconds):
                await self._feed()
            async with asyncio.timeout(self._settings.read_seconds):
                event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def _body(self, head: h11.Request) -> bytes:
        limit = self._settings.body_bytes_max
        length = next((value for name, value in head.headers if name == b"content-length"), b"0")
        if int(length) > limit:
            raise BodyTooLarge(f"a request body may have at most {limit} bytes, not {int(length)}")
        if self._http.they_are_waiting_for_100_continue:
            proceed = self._http.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            self._writer.write(proceed or b"")
        body = bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > limit:
                    raise BodyTooLarge(f"a request body may have at most {limit} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            else:
                raise ConnectionResetError("the client closed before the end of the body")

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._feed()
        return event

    async def _feed(self) -> None:
        self._http.receive_data(await self._reader.read(_READ_BYTES))

    async def _send(self, response: Response, head_only: bool, close: bool) -> None:
        response = await self._whole_if_small(response)
        headers = [(name.encode(), value.encode()) for name, value in response.headers]
        given = {name.lower() for name, _ in response.headers}
        headers += [(name.encode(), value.encode()) for name, value in _HEADERS if name.lower() not in given]
        if response.content_type is not None:
            headers.append((b"Content-Type", response.content_type.encode()))
        if response.pieces is not None:
            headers.append((b"Transfer-Encoding", b"chunked"))
        elif response.status not in (204, 304):
            headers.append((b"Content-Length", str(len(response.body)).encode()))
        if close:
            headers.append((b"Connection", b"close"))
        reason = HTTPStatus(response.status).phrase.encode()
        head = self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
        if response.pieces is not None and not head_only:
            send = self._send_live if response.is_live else self._send_pieces
            await send(head, response.body, response.pieces)
            return
        data = b"" if head_only or response.status in (204, 304) else response.body
        body = self._http.send(h11.Data(data=data)) or b"" if data else b""
        end = self._http.send(h11.EndOfMessage()) or b""
        self._writer.write(head + body + end)
        async with asyncio.timeout(self._settings.read_seconds):
            await self._writer.drain()

    async def _whole_if_small(self, response: Response) -> Response:
        """Joins the pieces of a short body, so that only long answers are chunked."""
        if response.pieces is None or response.is_live:
            return response
        gathered = bytearray()
        async for piece in response.pieces:
            gathered += piece
            if len(gathered) > _WHOLE_BYTES_MAX:
                return replace(response, body=bytes(gathered))  # the gathered part is sent first
        return replace(response, body=bytes(gathered), pieces=None)

    async def _send_pieces(self, head: bytes, begun: bytes, pieces: AsyncIterator[bytes]) -> None:
        """Sends pieces as they are made, no faster than the client reads."""
        self._writer.write(head)
        self._writer.write(self._http.send(h11.Data(data=begun)) or b"")
        async for piece in pieces:
            self._writer.write(self._http.send(h11.Data(data=piece)) or b"")
            async with asyncio.timeout(self._settings.read_seconds):
                await self._writer.drain()
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        async with asyncio.timeout(self._settings.read_seconds):
            await self._writer.drain()

    async def _send_live(self, head: bytes, begun: bytes, pieces: AsyncIterator[bytes]) -> None:
        """Sends each piece at once, until the pieces end, the server stops or the client does not read for
        `read_seconds`. The next piece is made when the last one was taken, so memory is bounded by one piece."""
        self._live = asyncio.timeout(None)
        self._writer.write(head + (self._http.send(h11.Data(data=begun)) or b"" if begun else b""))
        try:
            async with self._live, aclosing(closable(pieces)) as source:
                self.is_live = True
                async for piece in source:
                    self._writer.write(self._http.send(h11.Data(data=piece)) or b"")
                    async with asyncio.timeout(self._settings.read_seconds):
                        await self._writer.drain()
        except TimeoutError:
            if not self._live.expired():  # the client does not read: what waits for it is dropped
                self.abort()
                raise
            self._writer.write(self._http.send(h11.Data(data=ended("stopping", "the broker stops"))) or b"")
        finally:
            self.is_live = False
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        async with asyncio.timeout(self._settings.read_seconds):
            await self._writer.drain()


def _host(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else ""


def _request(head: h11.Request, body: bytes) -> Request:
    try:
        target = head.target.decode("ascii")
    except UnicodeDecodeError as error:
        raise BadRequest("the request target must be encoded as ASCII with %XX") from error
    path, _, query = target.partition("?")
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
    pairs = parse_qsl(query, keep_blank_values=True)
    return Request(
        method=head.method.decode("ascii"),
        path=path,
        query=dict(pairs),
        query_pairs=tuple(pairs),
        headers=headers,
        body=body,
    )


class HttpServer:
    """`async with HttpServer(router, settings) as server` listens; at exit started requests may finish."""

    def __init__(
        self,
        router: Router,
        settings: HttpSettings,
        access: AccessFilter | None = None,
        internal: InternalHandler | None = None,
        isolation: IsolationRules | None = None,
        relay: Relay | None = None,
    ) -> None:
        """`internal` serves the calls of other brokers; None for a broker without a cluster. `relay` passes requests of
        pages on to them."""
        self._isolation = isolation
        self._relay = relay
        self._router = router
        self._settings = settings
        self._access = access
        self._internal = internal
        self._tls: list[TlsStreamServer] = []
        self._tasks = TaskOwner("http")
        self._exchanges: set[Exchange] = set()
        self._server: asyncio.Server | None = None
        self._front: asyncio.Server | None = None
        self._requests = 0
        self._failures = 0
        self.port = settings.port  # the real one once listening

    async def start(self) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=_READ_BYTES, backlog=256)
        except OSError as error:
            raise CannotListen(f"cannot serve HTTP on {host}:{port}: {os.strerror(error.errno or 0)}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def start_front(self, port: int) -> None:
        """Listens also on a port that all brokers of this machine share; any of them answers."""
        host = self._settings.host
        try:
            self._front = await asyncio.start_server(
                self._connected, host, port, limit=_READ_BYTES, backlog=256, reuse_port=True
            )
        except OSError as error:
            raise CannotListen(f"cannot serve HTTP on {host}:{port}: {os.strerror(error.errno or 0)}") from error

    async def start_tls(self, tls: TlsServer, port: int, *, shares_port: bool = False) -> int:
        """Listens (also) on a port with TLS, which other brokers of this machine may share; returns its number."""
        host = self._settings.host
        try:
            opened = await TlsStreamServer.listen(
                host, port, tls, self._connected, _READ_BYTES, shares_port=shares_port
            )
        except OSError as error:
            raise CannotListen(f"cannot serve HTTPS on {host}:{port}: {os.strerror(error.errno or 0)}") from error
        self._tls.append(opened)
        return opened.port

    async def stop(self, seconds: float = 2.0) -> None:
        """Stops accepting and closes idle connections; running requests get `seconds` to finish."""
        for plain in (self._server, self._front):
            if plain is not None:
                plain.close()
        for encrypted in self._tls:
            await encrypted.close()
        for exchange in tuple(self._exchanges):
            exchange.is_closing = True
            if exchange.is_idle:
                exchange.abort()
            elif exchange.is_live:
                exchange.end_live()
        await self._tasks.drain(seconds)
        await self._tasks.close()
        self._server = self._front = None
        self._tls.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def stats(self) -> HttpStats:
        return HttpStats(len(self._exchanges), self._requests, self._failures, self._streams())

    def _streams(self) -> int:
        return sum(exchange.is_live for exchange in self._exchanges)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_full(writer):
            writer.write(_FULL)
            writer.close()
            return
        exchange = Exchange(reader, writer, self._settings, self._serve)
        self._exchanges.add(exchange)
        self._tasks.spawn(self._run(exchange), "exchange")

    def _is_full(self, writer: asyncio.StreamWriter) -> bool:
        if len(self._exchanges) >= self._settings.connections_max:
            return True
        limit = self._settings.connections_per_address_max
        host = _host(writer)
        return bool(limit) and sum(exchange.host == host for exchange in self._exchanges) >= limit

    async def _run(self, exchange: Exchange) -> None:
        try:
            await exchange.run()
        finally:
            self._exchanges.discard(exchange)

    async def _serve(self, request: Request) -> Response:
        self._requests += 1
        response = await answer(
            self._router,
            request,
            self._settings.handle_seconds,
            self._access,
            self._internal,
            self._isolation,
            self._relay,
        )
        if response.is_live and self._streams() >= self._settings.streams_max:
            response = error_response(TooManyStreams("too many live answers; close some, or raise http.streams_max"))
        if response.status >= 500:
            self._failures += 1
        return encoded(request, response)
