"""Sessions as etcd leases, kept alive over a stream.

`valid_until` is the lease's ttl after the latest answered keep-alive was sent. A session without answers is
DISCONNECTED; it becomes LOST one more ttl after `valid_until`, because etcd prolongs leases when its leader changes, so
a session often exists longer than its holder may rely on. From then on it is not kept alive.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
import grpc.aio

from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.channel import GRANT, KEEP_ALIVE, REVOKE, EtcdChannel
from anabranch.metadata.grpc_calls import CallFailed, answer
from anabranch.metadata.interface import SessionEvent, SessionLost, StoreUnavailable
from anabranch.metadata.session_base import SessionBase
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

TTL_MS_MIN = 2_000
"""The shortest lease that a server with default settings grants (one and a half election timeouts, in whole seconds).
Shorter ones are not requested, because a lease should not expire during an election."""

TTL_MS_MAX = 24 * 3600 * 1000
_PAUSE_S = 0.1

KeepAliveCall = grpc.aio.StreamStreamCall[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]

log = get_logger(__name__)


@dataclass(slots=True)
class LeaseClock:
    """When a lease may end, and the events for its holder. Pure: time is passed in."""

    ttl_s: float
    valid_until: float
    is_connected: bool = True
    is_lost: bool = False

    def on_answer(self, sent_at: float, ttl_s: float) -> list[SessionEvent]:
        """The server answered a keep-alive sent at `sent_at`. A ttl of 0 means that the lease has ended."""
        if ttl_s <= 0:
            return self.on_end(sent_at)
        self.ttl_s = ttl_s
        self.valid_until = max(self.valid_until, sent_at + ttl_s)
        was_connected, self.is_connected = self.is_connected, True
        return [] if was_connected else [SessionEvent.RECONNECTED]

    def on_silence(self, now: float) -> list[SessionEvent]:
        """There was no answer until `now`."""
        events = [SessionEvent.DISCONNECTED] if self.is_connected else []
        self.is_connected = False
        return events + (self.on_end(now) if now >= self.valid_until + self.ttl_s else [])

    def on_end(self, now: float) -> list[SessionEvent]:
        if self.is_lost:
            return []
        self.is_lost = True
        self.valid_until = min(self.valid_until, now)
        return [SessionEvent.LOST]


class EtcdSession(SessionBase):
    """Made by `grant`, which also starts its keep-alives."""

    def __init__(self, channel: EtcdChannel, clock: Clock, lease: int, state: LeaseClock) -> None:
        super().__init__(round(state.ttl_s * 1000))
        self._channel = channel
        self._clock = clock
        self._state = state
        self._tasks = TaskOwner(f"etcd-lease-{lease:x}")
        self.lease = lease

    @property
    def valid_until(self) -> float:
        return self._state.valid_until

    def start(self) -> None:
        self._tasks.spawn(self._keep(), "keep-alive")

    async def close(self) -> None:
        """Revoke the lease: its keys are deleted when this returns, or after its ttl if no server answers."""
        if self.is_lost:
            await self._tasks.close()
            return
        await self._tasks.close()
        try:
            await self._channel.repeat(REVOKE, pb.LeaseRevokeRequest(ID=self.lease))
        except SessionLost:
            pass  # it has ended already
        except StoreUnavailable as error:
            log.warning("etcd lease not revoked; it will expire", extra={"lease": self.lease, "error": str(error)})
        self.end()

    def end(self) -> None:
        """The lease is known to have ended."""
        self._notify_all(self._state.on_end(self._clock.monotonic()))

    async def _keep(self) -> None:
        while not self.is_lost:
            connection = None
            try:
                connection = self._channel.connection()
                await self._keep_on(await self._channel.stream(connection, KEEP_ALIVE))
            except (CallFailed, TimeoutError, StoreUnavailable) as error:
                log.info(
                    "etcd lease keep-alive not answered; trying another server",
                    extra={"lease": self.lease, "error": str(error)},
                )
                if connection is not None:
                    self._channel.leave(connection)
                self._notify_all(self._state.on_silence(self._clock.monotonic()))
                await self._clock.sleep(_PAUSE_S)

    async def _keep_on(
        self, call: grpc.aio.StreamStreamCall[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
    ) -> None:
        """Return when the lease has ended; raise when this stream fails."""
        request = pb.LeaseKeepAliveRequest(ID=self.lease)
        try:
            while True:
                interval_s = self._state.ttl_s / 3  # leaves time for another attempt on another server
                sent_at = self._clock.monotonic()
                async with asyncio.timeout(interval_s):
                    await answer(call.write(request))
                    response = await answer(call.read())
                if not isinstance(response, pb.LeaseKeepAliveResponse):
                    raise CallFailed(await call.code(), await call.details() or "")
                self._notify_all(self._state.on_answer(sent_at, response.TTL))
                if self.is_lost:
                    return
                await self._clock.sleep(interval_s)
        finally:
            call.cancel()

    def _notify_all(self, events: list[SessionEvent]) -> None:
        for event in events:
            self.notify(event)


async def grant(channel: EtcdChannel, clock: Clock, ttl_ms: int) -> EtcdSession:
    """A new session, kept alive from now on. A grant whose answer is lost expires, so it may be repeated."""
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise BadRequest(f"a session ttl must be between 1 and {TTL_MS_MAX} ms, not {ttl_ms}")
    asked_at = clock.monotonic()
    response = await channel.repeat(GRANT, pb.LeaseGrantRequest(TTL=-(-max(ttl_ms, TTL_MS_MIN) // 1000)))
    session = EtcdSession(channel, clock, response.ID, LeaseClock(response.TTL, asked_at + response.TTL))
    session.start()
    return session
