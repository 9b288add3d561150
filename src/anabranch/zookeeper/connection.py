"""One ZooKeeper session over a succession of channels: finds a server, keeps the session, tells when it is lost.

A request that is `repeatable` is sent again on the next channel until its deadline; any other that had left when the
channel was lost ends as OutcomeUnknown, because nobody can tell whether it was applied.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from anabranch.metadata.interface import OutcomeUnknown, SessionLost, StoreUnavailable
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner
from anabranch.zookeeper.channel import Answer, AnswerLate, Channel, ChannelLost, NotApplied, fail
from anabranch.zookeeper.jute import (
    Code,
    Event,
    MalformedAnswer,
    Request,
    ServerError,
    close_session,
    frame,
    sync,
)

CONNECT_S = 1.0  # for a server to answer, at first; twice as much with every round of all of them
CONNECT_S_MAX = 8.0
BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5)
CLOSE_S = 2.0
GIVE_UP_TIMEOUTS = 2  # a session without contact for so many times its own timeout is taken as lost

log = logging.getLogger(__name__)
_numbers = itertools.count(os.getpid())  # spreads connections and processes over the servers


class Server(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Phase(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    LOST = "lost"
    CLOSED = "closed"


class _Expired(Exception):
    """The server does not know the session any more."""


async def nothing(channel: Channel) -> None:
    return None


class Connection:
    """`renews`: when the session expires a new one is opened silently (for a holder of no ephemeral nodes)."""

    def __init__(
        self,
        servers: Sequence[Server],
        clock: Clock,
        *,
        timeout_ms: int,
        request_s: float,
        renews: bool,
        on_phase: Callable[[Phase], None] = lambda phase: None,
        on_event: Callable[[Event], None] = lambda event: None,
        prepare: Callable[[Channel], Awaitable[None]] = nothing,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._asked_ms = timeout_ms
        self._request_s = request_s
        self._renews = renews
        self._on_phase = on_phase
        self._on_event = on_event
        self._prepare = prepare
        self._tasks = TaskOwner("zookeeper")
        self._turn = next(_numbers)
        self._channel: Channel | None = None
        self._changed = asyncio.Event()  # set while there is a channel, or no hope for one
        self._password = b"\0" * 16
        self._floor = 0
        self._zxid = 0
        self._confirmed_at = 0.0
        self._reason = "no server was asked yet"
        self._is_closing = False
        self.phase = Phase.CONNECTING
        self.session_id = 0
        self.timeout_ms = timeout_ms

    @property
    def zxid(self) -> int:
        """The newest state that any answer came from."""
        return max(self._zxid, self._channel.zxid) if self._channel is not None else self._zxid

    @property
    def confirmed_at(self) -> float:
        """When the last answered sign of life was sent, on the clock's monotonic scale."""
        channel = self._channel
        return max(self._confirmed_at, channel.confirmed_at) if channel is not None else self._confirmed_at

    def deadline(self) -> float:
        """For an operation that begins now."""
        return self._clock.monotonic() + self._request_s

    async def open(self, deadline: float) -> None:
        """Connected when it returns."""
        self._tasks.spawn(self._serve(), "connection")
        try:
            await self._wait_channel(deadline)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the session at the server if it can be reached."""
        if self.phase in (Phase.CLOSED, Phase.LOST):
            await self._tasks.close()
            return
        self._is_closing = True
        try:
            if self.session_id and not (self._renews and self._channel is None):
                await self.call(close_session(), self._clock.monotonic() + min(CLOSE_S, self._request_s))
        except (StoreUnavailable, SessionLost) as error:
            log.info("session was not closed, it will expire", extra={"reason": str(error)})
        finally:
            self._end(Phase.CLOSED, "closed")
            await self._tasks.close()

    def catch_up(self, zxid: int) -> None:
        """Reads from now on see at least the state `zxid`, whatever server they are sent to."""
        self._floor = max(self._floor, zxid)

    async def call(self, request: Request, deadline: float) -> Answer:
        (answer,) = await self.call_all([request], deadline)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def call_all(self, requests: Sequence[Request], deadline: float) -> list[Answer | ServerError]:
        """Send in this order without waiting in between; the answers, errors of the server among them."""
        for request in requests:
            frame(0, request.op, request.body)  # too large: say so before anything is sent
        while True:
            channel = await self._wait_channel(deadline)
            futures: list[asyncio.Future[Answer]] = []
            has_left = False  # something that must not be sent twice
            try:
                for request in requests:
                    if not channel.has_room:
                        async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0)):
                            await channel.wait_room()
                    if request.repeatable:
                        self._catch_up_on(channel, deadline)
                    futures.append(channel.send(request, deadline))
                    has_left = has_left or not request.repeatable
                return [await _outcome(future) for future in futures]
            except TimeoutError:
                for future in futures:
                    fail(future, AnswerLate("given up"))
                late = OutcomeUnknown if has_left else StoreUnavailable
                raise late("too many metadata requests are on their way") from None
            except AnswerLate as error:
                if has_left:
                    raise OutcomeUnknown("ZooKeeper did not answer a write in time") from error
                raise StoreUnavailable("ZooKeeper did not answer in time") from error
            except (ChannelLost, MalformedAnswer) as error:
                if isinstance(error, NotApplied):
                    channel.end(error)
                    if error.is_expired and not self._renews:
                        self._end(Phase.LOST, "the session has expired")
                    if len(requests) == 1:
                        continue
                if has_left:
                    raise OutcomeUnknown(f"a write may or may not have happened: {error}") from error

    def _catch_up_on(self, channel: Channel, deadline: float) -> None:
        if self._floor > channel.zxid:
            channel.send(sync("/"), deadline)  # requests keep their order, so nobody has to wait for it
            channel.zxid = self._floor

    async def _wait_channel(self, deadline: float) -> Channel:
        while True:
            if self.phase is Phase.LOST:
                raise SessionLost("the session has ended")
            if self.phase is Phase.CLOSED:
                raise StoreUnavailable("the metadata store is not open")
            channel = self._channel
            if channel is not None and not channel.gone.is_set():
                return channel
            left = deadline - self._clock.monotonic()
            try:
                async with asyncio.timeout(max(left, 0)):
                    if channel is not None:
                        await channel.gone.wait()
                        self._disconnected(channel)
                    await self._changed.wait()
            except TimeoutError:
                raise StoreUnavailable(f"no ZooKeeper server can be used: {self._reason}") from None

    # The life of the session -----------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        failures = 0
        while True:
            server = self._servers[self._turn % len(self._servers)]
            rounds = failures // len(self._servers)
            try:
                channel = await self._connect(server, rounds)
            except _Expired:
                if not self._renews:
                    self._end(Phase.LOST, "the session has expired")
                    return
                self.session_id, self._password = 0, b"\0" * 16
                continue
            except (OSError, UnicodeError, StoreUnavailable) as error:  # unicode: a host name that cannot be one
                self._turn += 1
                self._reason = f"{server}: {error}"
                if self._is_hopeless():
                    self._end(Phase.LOST, "no contact for too long")
                    return
                failures += 1
                if failures % len(self._servers) == 0:
                    await self._clock.sleep(BACKOFF_S[min(rounds, len(BACKOFF_S) - 1)])
                continue
            failures = 0
            self._channel = channel
            self._set_phase(Phase.CONNECTED)
            self._changed.set()
            await channel.gone.wait()
            if self._is_closing and self._renews:
                return
            self._turn += 1
            self._disconnected(channel)

    def _disconnected(self, channel: Channel) -> None:
        """Seen by the keeper of the connection or by a request, whoever comes first."""
        if self._channel is channel and self.phase is Phase.CONNECTED:
            self._remember(channel)
            self._channel = None
            self._changed.clear()
            self._reason = "the connection was lost"
            self._set_phase(Phase.CONNECTING)

    def _remember(self, channel: Channel) -> None:
        self._zxid = max(self._zxid, channel.zxid)
        self._confirmed_at = max(self._confirmed_at, channel.confirmed_at)

    def _is_hopeless(self) -> bool:
        if self._renews or not self.session_id:
            return False
        return self._clock.monotonic() - self.confirmed_at > GIVE_UP_TIMEOUTS * self.timeout_ms / 1000

    async def _connect(self, server: Server, rounds: int) -> Channel:
        loop = asyncio.get_running_loop()
        channel = Channel(self._clock, self._on_event)
        seconds = min(CONNECT_S * 2 ** min(rounds, 10), CONNECT_S_MAX)
        if not self._renews:
            seconds = min(seconds, max(self.timeout_ms / 3000, 0.3))  # a session has no more time to find a server
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(lambda: channel, server.host, server.port)
                known = max(self.zxid, self._floor)
                answer = await channel.shake_hands(known, self._asked_ms, self.session_id, self._password)
                if answer.timeout_ms == 0:
                    raise _Expired
                channel.zxid = known  # a server that is behind this refuses the connection
                channel.start_pings(answer.timeout_ms)
                self.session_id, self._password = answer.session_id, answer.password
                self.timeout_ms = answer.timeout_ms
                self._remember(channel)
                await self._prepare(channel)
        except TimeoutError:
            channel.end(ChannelLost("connecting took too long"))
            raise StoreUnavailable(f"no answer within {seconds:g} s") from None
        except BaseException:
            channel.end(ChannelLost("connecting failed"))
            raise
        return channel

    def _end(self, phase: Phase, reason: str) -> None:
        if self.phase in (Phase.CLOSED, Phase.LOST):
            return
        if self._channel is not None:
            self._remember(self._channel)
            self._channel.end(ChannelLost(reason))
            self._channel = None
        self._reason = reason
        self._set_phase(phase)
        self._changed.set()

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self._on_phase(phase)


async def _outcome(future: asyncio.Future[Answer]) -> Answer | ServerError:
    try:
        return await future
    except ServerError as error:
        if error.number in (Code.SESSION_EXPIRED, Code.SESSION_MOVED):
            raise NotApplied(str(error), is_expired=error.number == Code.SESSION_EXPIRED) from error
        return error
