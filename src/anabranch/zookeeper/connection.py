"""One ZooKeeper session over a succession of channels: finds a server, keeps the session alive, reports its loss.

    CONNECTING <--> CONNECTED --> CLOSED
         |              |
         +------------> LOST      the session has expired, or had no contact for twice its timeout

A `repeatable` request is sent again on the next channel until its deadline. Any other request that was sent when the
channel was lost raises OutcomeUncertain, because it may or may not have been applied.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.zookeeper.access import OPEN_ACCESS, Access
from anabranch.zookeeper.address import Server
from anabranch.zookeeper.channel import Answer, Channel, fail
from anabranch.zookeeper.errors import (
    AccessRefused,
    AnswerTimeout,
    Code,
    ConnectionLost,
    MalformedAnswer,
    NotApplied,
    OutcomeUncertain,
    ServerError,
    SessionExpired,
    ZooKeeperError,
    ZooKeeperUnavailable,
)
from anabranch.zookeeper.jute import Event, Request, barrier, close_session, frame

CONNECT_S = 1.0  # deadline of the first attempts; doubled after each round over all servers
CONNECT_S_MAX = 8.0
BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5)
CLOSE_S = 2.0
LOST_AFTER_TIMEOUTS = 2  # a session without contact for this many times its timeout counts as lost

log = get_logger(__name__)
_numbers = itertools.count(os.getpid())  # spreads connections and processes over the servers


class Phase(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    LOST = "lost"
    CLOSED = "closed"


class _Expired(Exception):
    """The server answered the handshake with an expired session."""


async def no_preparation(channel: Channel) -> None:
    return None


class Connection:
    """`renew_expired`: an expired session is replaced silently, for users without ephemeral nodes.

    `prepare` runs on every new channel before it is used; if it raises, the next server is tried. Until a session is
    established, TLS or credentials that every server refuses end the connection (AccessRefused). Later they are
    retried, because a server's certificate may be exchanged.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        clock: Clock,
        *,
        timeout_ms: int,
        request_s: float,
        renew_expired: bool,
        access: Access = OPEN_ACCESS,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        on_event: Callable[[Event], None] = lambda event: None,
        prepare: Callable[[Channel], Awaitable[None]] = no_preparation,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._asked_ms = timeout_ms
        self._request_s = request_s
        self._renews = renew_expired
        self._access = access
        self._refusal: AccessRefused | None = None
        self._on_phase = on_phase
        self._on_event = on_event
        self._prepare = prepare
        self._tasks = TaskOwner("zookeeper")
        self._server_index = next(_numbers)
        self._channel: Channel | None = None
        self._changed = asyncio.Event()  # set while there is a channel, or after the connection ended
        self._password = b"\0" * 16
        self._zxid_min = 0
        self._zxid = 0
        self._confirmed_at = 0.0
        self._reason = "no server has been tried yet"
        self._is_closing = False
        self.phase = Phase.CONNECTING
        self.session_id = 0
        self.timeout_ms = timeout_ms

    @property
    def zxid(self) -> int:
        """The newest transaction that any answer has shown."""
        return max(self._zxid, self._channel.zxid) if self._channel is not None else self._zxid

    @property
    def confirmed_at(self) -> float:
        """Send time (monotonic) of the latest answered request or ping."""
        channel = self._channel
        return max(self._confirmed_at, channel.confirmed_at) if channel is not None else self._confirmed_at

    def deadline(self) -> float:
        """Deadline of an operation that begins now."""
        return self._clock.monotonic() + self._request_s

    async def open(self, deadline: float) -> None:
        """Return once connected; raises if no server can be used before the deadline."""
        self._tasks.spawn(self._serve(), "connection")
        try:
            await self._wait_channel(deadline)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session at the server if it can be reached; otherwise it expires. Does not raise."""
        if self.phase in (Phase.CLOSED, Phase.LOST):
            await self._tasks.close()
            return
        self._is_closing = True
        try:
            if self.session_id and not (self._renews and self._channel is None):
                await self.call(close_session(), self._clock.monotonic() + min(CLOSE_S, self._request_s))
        except ZooKeeperError as error:
            log.info("ZooKeeper session not closed; it will expire", extra={"reason": str(error)})
        finally:
            self._end(Phase.CLOSED, "closed")
            await self._tasks.close()

    def require_zxid(self, zxid: int) -> None:
        """Later reads see at least transaction `zxid`, whatever server they are sent to."""
        self._zxid_min = max(self._zxid_min, zxid)

    async def call(self, request: Request, deadline: float) -> Answer:
        (answer,) = await self.call_all([request], deadline)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def call_all(self, requests: Sequence[Request], deadline: float) -> list[Answer | ServerError]:
        """Pipeline the requests in this order. Returns their answers; errors of the server are values among them."""
        for request in requests:
            frame(0, request.op, request.body)  # raises RequestTooLarge before anything is sent
        while True:
            channel = await self._wait_channel(deadline)
            futures: list[asyncio.Future[Answer]] = []
            has_sent_write = False  # a request that must not be sent twice
            try:
                for request in requests:
                    if not channel.has_capacity:
                        async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0)):
                            await channel.wait_capacity()
                    if request.repeatable:
                        self._catch_up_if_behind(channel, deadline)
                    futures.append(channel.send(request, deadline))
                    has_sent_write = has_sent_write or not request.repeatable
                return [await _outcome(future) for future in futures]
            except TimeoutError:
                for future in futures:
                    fail(future, AnswerTimeout("the caller no longer waits"))
                late = OutcomeUncertain if has_sent_write else ZooKeeperUnavailable
                raise late("too many ZooKeeper requests are pending") from None
            except AnswerTimeout as error:
                if has_sent_write:
                    raise OutcomeUncertain("ZooKeeper did not answer a write in time") from error
                raise ZooKeeperUnavailable("ZooKeeper did not answer in time") from error
            except (ConnectionLost, MalformedAnswer) as error:
                if isinstance(error, NotApplied):
                    channel.abort(error)
                    if error.is_expired and not self._renews:
                        self._end(Phase.LOST, "the session has expired")
                    if len(requests) == 1:
                        continue
                if has_sent_write:
                    raise OutcomeUncertain(f"a write may or may not have happened: {error}") from error

    def _catch_up_if_behind(self, channel: Channel, deadline: float) -> None:
        if self._zxid_min > channel.zxid:
            channel.send(barrier(), deadline)  # requests are answered in order, so no wait is needed
            channel.zxid = self._zxid_min

    async def _wait_channel(self, deadline: float) -> Channel:
        while True:
            if self.phase is Phase.LOST:
                raise SessionExpired("the session has ended")
            if self._refusal is not None:
                raise self._refusal
            if self.phase is Phase.CLOSED:
                raise ZooKeeperUnavailable("the ZooKeeper connection is closed")
            channel = self._channel
            if channel is not None and not channel.closed.is_set():
                return channel
            left = deadline - self._clock.monotonic()
            try:
                async with asyncio.timeout(max(left, 0)):
                    if channel is not None:
                        await channel.closed.wait()
                        self._disconnected(channel)
                    await self._changed.wait()
            except TimeoutError:
                raise ZooKeeperUnavailable(f"no ZooKeeper server can be used: {self._reason}") from None

    # Session ---------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        failures = refusals = 0
        while True:
            server = self._servers[self._server_index % len(self._servers)]
            rounds = failures // len(self._servers)
            try:
                channel = await self._connect(server, rounds)
            except _Expired:
                if not self._renews:
                    self._end(Phase.LOST, "the session has expired")
                    return
                self.session_id, self._password = 0, b"\0" * 16
                continue
            except (OSError, UnicodeError, ZooKeeperError) as error:  # UnicodeError: an invalid host name
                self._server_index += 1
                self._reason = f"{server}: {error}"
                refusals = refusals + 1 if _is_refusal(error) else 0
                if refusals >= len(self._servers) and not self.session_id:
                    self._refusal = AccessRefused(f"ZooKeeper at {self._reason}")
                    self._end(Phase.CLOSED, self._reason)
                    return
                if self._is_out_of_contact():
                    self._end(Phase.LOST, "no contact with any server for too long")
                    return
                failures += 1
                if failures % len(self._servers) == 0:
                    await self._clock.sleep(BACKOFF_S[min(rounds, len(BACKOFF_S) - 1)])
                continue
            failures = refusals = 0
            self._channel = channel
            self._set_phase(Phase.CONNECTED)
            self._changed.set()
            await channel.closed.wait()
            if self._is_closing and self._renews:
                return
            self._server_index += 1
            self._disconnected(channel)

    def _disconnected(self, channel: Channel) -> None:
        """Called by `_serve` and by requests; the first call counts."""
        if self._channel is channel and self.phase is Phase.CONNECTED:
            self._save_progress(channel)
            self._channel = None
            self._changed.clear()
            self._reason = "the connection was lost"
            self._set_phase(Phase.CONNECTING)

    def _save_progress(self, channel: Channel) -> None:
        self._zxid = max(self._zxid, channel.zxid)
        self._confirmed_at = max(self._confirmed_at, channel.confirmed_at)

    def _is_out_of_contact(self) -> bool:
        if self._renews or not self.session_id:
            return False
        return self._clock.monotonic() - self.confirmed_at > LOST_AFTER_TIMEOUTS * self.timeout_ms / 1000

    async def _connect(self, server: Server, rounds: int) -> Channel:
        loop = asyncio.get_running_loop()
        channel = Channel(self._clock, self._on_event)
        seconds = min(CONNECT_S * 2 ** min(rounds, 10), CONNECT_S_MAX)
        if not self._renews:
            seconds = min(seconds, max(self.timeout_ms / 3000, 0.3))  # the session would expire while waiting longer
        try:
            async with asyncio.timeout(seconds):
                name = (self._access.server_name or server.host) if self._access.tls is not None else None
                await loop.create_connection(
                    lambda: channel, server.host, server.port, ssl=self._access.tls, server_hostname=name
                )
                known = max(self.zxid, self._zxid_min)
                answer = await channel.handshake(known, self._asked_ms, self.session_id, self._password)
                if answer.timeout_ms == 0:
                    raise _Expired
                channel.zxid = known  # a server behind this transaction refuses the connection
                if self._access.digest:
                    await channel.authenticate(self._access.digest)
                channel.start_pings(answer.timeout_ms)
                self.session_id, self._password = answer.session_id, answer.password
                self.timeout_ms = answer.timeout_ms
                self._save_progress(channel)
                await self._prepare(channel)
        except TimeoutError:
            channel.abort(ConnectionLost("connecting timed out"))
            raise ZooKeeperUnavailable(f"no answer within {seconds:g} s") from None
        except BaseException:
            channel.abort(ConnectionLost("connecting failed"))
            raise
        return channel

    def _end(self, phase: Phase, reason: str) -> None:
        if self.phase in (Phase.CLOSED, Phase.LOST):
            return
        if self._channel is not None:
            self._save_progress(self._channel)
            self._channel.abort(ConnectionLost(reason))
            self._channel = None
        self._reason = reason
        self._set_phase(phase)
        self._changed.set()

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self._on_phase(phase)


def _is_refusal(error: Exception) -> bool:
    """TLS failed, or the server did not accept the credentials."""
    return isinstance(error, ssl.SSLError) or (isinstance(error, ServerError) and error.number == Code.AUTH_FAILED)


async def _outcome(future: asyncio.Future[Answer]) -> Answer | ServerError:
    try:
        return await future
    except ServerError as error:
        if error.number in (Code.SESSION_EXPIRED, Code.SESSION_MOVED):
            raise NotApplied(str(error), is_expired=error.number == Code.SESSION_EXPIRED) from error
        return error
