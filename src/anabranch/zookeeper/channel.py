"""One TCP connection to one ZooKeeper server: handshake, pipelined requests, answers matched in order, pings.

Requests of one turn of the event loop are sent with one write. A channel is not reused after it ends: its `Connection`
makes the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from anabranch.runtime.clock import Clock, Timer
from anabranch.zookeeper.errors import AnswerTimeout, ConnectionLost, MalformedAnswer, ServerError, ZooKeeperError
from anabranch.zookeeper.jute import (
    HEADER_BYTES,
    XID_AUTH,
    XID_EVENT,
    XID_PING,
    ConnectAnswer,
    Event,
    Op,
    Request,
    auth_body,
    connect,
    connect_answer,
    event_of,
    frame,
    frame_size,
    header_of,
)

REQUESTS_MAX = 2_000  # without an answer, at once
REQUEST_BYTES_MAX = 16 * 1024 * 1024
PINGS_PER_TIMEOUT = 5
SILENCE_SHARE = 0.6  # of the session timeout; after this much silence another server is tried
DEADLINE_CHECK_S = 0.1


class Answer(NamedTuple):
    body: bytes
    zxid: int


class _Pending:
    __slots__ = ("xid", "future", "sent_at", "deadline", "size")

    def __init__(self, xid: int, future: asyncio.Future[Answer], sent_at: float, deadline: float, size: int) -> None:
        self.xid = xid
        self.future = future
        self.sent_at = sent_at
        self.deadline = deadline
        self.size = size


class Channel(asyncio.Protocol):
    def __init__(self, clock: Clock, on_event: Callable[[Event], None]) -> None:
        self._clock = clock
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._input = bytearray()
        self._output: list[bytes] = []
        self._flush_is_due = False
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._connected: asyncio.Future[ConnectAnswer] | None = None
        self._authenticated: asyncio.Future[None] | None = None
        self._xid = 0
        self._timers: list[Timer] = []
        self._timeout_s = 0.0
        self._ping_sent_at: float | None = None
        self._received_at = 0.0
        self._reason: ZooKeeperError | None = None
        self.closed = asyncio.Event()
        self.zxid = 0
        self.confirmed_at = 0.0
        """Send time of the latest request that was answered."""

    # For the owner ---------------------------------------------------------------------------------------------------

    async def handshake(self, last_zxid: int, timeout_ms: int, session_id: int, password: bytes) -> ConnectAnswer:
        assert self._transport is not None
        self._connected = self._loop.create_future()
        sent_at = self._clock.monotonic()
        if self._reason is not None:
            raise self._reason
        self._transport.write(connect(last_zxid, timeout_ms, session_id, password))
        answer = await self._connected
        self.confirmed_at = sent_at
        return answer

    async def authenticate(self, digest: str) -> None:
        """`digest` is `user:password`. Raises ServerError if the server refuses it."""
        self._authenticated = self._loop.create_future()
        if self._reason is not None:
            raise self._reason
        self._write(frame(XID_AUTH, Op.AUTH, auth_body("digest", digest.encode())))
        await self._authenticated

    def start_pings(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._received_at = self._clock.monotonic()
        self._every(self._timeout_s / PINGS_PER_TIMEOUT, self._ping)
        self._every(DEADLINE_CHECK_S, self._check_deadlines)

    @property
    def has_capacity(self) -> bool:
        return len(self._pending) < REQUESTS_MAX and self._pending_bytes < REQUEST_BYTES_MAX

    async def wait_capacity(self) -> None:
        while not self.has_capacity:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                self._wake()  # pass the free capacity on to the next waiter
                raise

    def send(self, request: Request, deadline: float) -> asyncio.Future[Answer]:
        """The future fails with ServerError, ConnectionLost, AnswerTimeout or MalformedAnswer."""
        if self._reason is not None:
            raise self._reason
        self._xid = xid = self._xid % 0x7FFFFFFF + 1
        raw = frame(xid, request.op, request.body)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._pending.append(_Pending(xid, future, self._clock.monotonic(), deadline, len(raw)))
        self._pending_bytes += len(raw)
        self._write(raw)
        return future

    def abort(self, reason: ZooKeeperError) -> None:
        """Drop the connection now and fail all pending requests with `reason`."""
        if self._reason is not None:
            return
        self._reason = reason
        for timer in self._timers:
            timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(reason)
        if self._authenticated is not None:
            fail(self._authenticated, reason)
        while self._pending:
            fail(self._pending.popleft().future, reason)
        self._pending_bytes = 0
        while self._waiters:
            self._wake()
        self.closed.set()

    # asyncio.Protocol ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(ConnectionLost(f"connection to ZooKeeper lost: {exc or 'closed by the server'}"))

    def data_received(self, data: bytes) -> None:
        self._received_at = self._clock.monotonic()
        buffer = self._input
        buffer += data
        at = 0
        try:
            while (size := frame_size(buffer, at)) is not None and len(buffer) - at - 4 >= size:
                with memoryview(buffer) as view:
                    raw = bytes(view[at + 4 : at + 4 + size])
                at += 4 + size
                self._frame(raw)
        except MalformedAnswer as error:
            self.abort(error)
            return
        if at:
            del buffer[:at]

    # Internals --------------------------------------------------------------------------------------------------------

    def _frame(self, raw: bytes) -> None:
        if self._reason is not None:
            return
        if self._connected is None:
            raise MalformedAnswer("the server sent data before the handshake")
        if not self._connected.done():
            self._connected.set_result(connect_answer(raw))
            return
        xid, zxid, error = header_of(raw)
        if xid == XID_EVENT:
            self._on_event(event_of(raw, zxid))
            return
        if xid == XID_AUTH:
            self._on_authenticated(error)
            return
        if zxid > self.zxid:
            self.zxid = zxid
        if xid == XID_PING:
            if self._ping_sent_at is not None:
                self.confirmed_at = max(self.confirmed_at, self._ping_sent_at)
                self._ping_sent_at = None
            return
        if not self._pending or self._pending[0].xid != xid:
            raise MalformedAnswer(f"an answer to request {xid}, which is not the oldest pending one")
        pending = self._pending.popleft()
        self._pending_bytes -= pending.size
        self.confirmed_at = max(self.confirmed_at, pending.sent_at)
        if self._waiters:
            self._wake()
        if pending.future.done():
            return
        if error:
            fail(pending.future, ServerError(error))
        else:
            pending.future.set_result(Answer(raw[HEADER_BYTES:], zxid))

    def _on_authenticated(self, error: int) -> None:
        waiting = self._authenticated
        if waiting is None or waiting.done():
            raise MalformedAnswer("an answer to credentials that were not sent")
        if error:
            fail(waiting, ServerError(error))
        else:
            waiting.set_result(None)

    def _write(self, raw: bytes) -> None:
        self._output.append(raw)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        output, self._output = self._output, []
        if self._reason is None and self._transport is not None:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _ping(self) -> None:
        now = self._clock.monotonic()
        if now - self._received_at > self._timeout_s * SILENCE_SHARE:
            self.abort(ConnectionLost(f"no data from ZooKeeper for {now - self._received_at:.1f} s"))
        elif self._ping_sent_at is None:
            self._ping_sent_at = now
            self._write(frame(XID_PING, Op.PING, b""))

    def _check_deadlines(self) -> None:
        """Fail late requests. Their entries stay in the queue, because answers are matched by order."""
        now = self._clock.monotonic()
        for pending in self._pending:
            if pending.deadline <= now and not pending.future.done():
                fail(pending.future, AnswerTimeout("ZooKeeper did not answer in time"))

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        index = len(self._timers)

        def turn() -> None:
            work()
            if self._reason is None:
                self._timers[index] = self._clock.call_later(seconds, turn)

        self._timers.append(self._clock.call_later(seconds, turn))


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Fail `future` unless it is done; mark the exception as retrieved, because the caller may no longer wait."""
    if not future.done():
        future.set_exception(error)
        future.exception()
