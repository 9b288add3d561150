"""Sessions as etcd leases: kept alive over a stream, told of as events. Knows nothing of keys.

`valid_until` counts from the moment the last answered sign of life was sent. A session that hears nothing is
DISCONNECTED; it is given up, and told LOST, one more lifetime after `valid_until`: etcd prolongs leases when its leader
changes, so a session often survives longer than its holder may rely on. From then on it is no longer kept alive.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import grpc
import grpc.aio

from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.channel import GRANT, KEEP_ALIVE, REVOKE, EtcdChannel
from anabranch.metadata.grpc_calls import CallFailed, answer
from anabranch.metadata.interface import SessionEvent, SessionLost, StoreUnavailable
from anabranch.metadata.session_base import SessionLife
from anabranch.model.errors import BadRequest
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner

TTL_MS_MIN = 2_000
"""What a server with usual settings grants at least (one and a half election timeouts, in whole seconds). We ask for no
less: a lease that may run out during an election is of little use."""

TTL_MS_MAX = 24 * 3600 * 1000
_PAUSE_S = 0.1

KeepAliveCall = grpc.aio.StreamStreamCall[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LeaseClock:
    """When a lease may end, and what its holder is told. Pure: time comes in."""

    ttl_s: float
    valid_until: float
    is_connected: bool = True
    is_lost: bool = False

    def answered(self, sent_at: float, ttl_s: float) -> list[SessionEvent]:
        """The server answered a sign of life that was sent at `sent_at`; no lifetime left: the lease is gone."""
        if ttl_s <= 0:
            return self.ended(sent_at)
        self.ttl_s = ttl_s
        self.valid_until = max(self.valid_until, sent_at + ttl_s)
        was_connected, self.is_connected = self.is_connected, True
        return [] if was_connected else [SessionEvent.RECONNECTED]

    def missed(self, now: float) -> list[SessionEvent]:
        """No answer, at this time."""
        told = [SessionEvent.DISCONNECTED] if self.is_connected else []
        self.is_connected = False
        return told + (self.ended(now) if now >= self.valid_until + self.ttl_s else [])

    def ended(self, now: float) -> list[SessionEvent]:
        if self.is_lost:
            return []
        self.is_lost = True
        self.valid_until = min(self.valid_until, now)
        return [SessionEvent.LOST]


class EtcdSession(SessionLife):
    """Made by `grant`; its owner runs `keep`."""

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
        """Revokes the lease: its keys are gone when this returns, or within its lifetime if no server answers."""
        if self.is_lost:
            await self._tasks.close()
            return
        await self._tasks.close()
        try:
            await self._channel.repeat(REVOKE, pb.LeaseRevokeRequest(ID=self.lease))
        except SessionLost:
            pass  # it was gone already, which is what was asked for
        except StoreUnavailable as error:
            log.warning("lease was not revoked and will run out", extra={"lease": self.lease, "error": str(error)})
        self.end()

    def end(self) -> None:
        """Somebody learned that the lease is gone."""
        self._tell(self._state.ended(self._clock.monotonic()))

    async def _keep(self) -> None:
        while not self.is_lost:
            line = None
            try:
                line = self._channel.line()
                await self._keep_on(line.stream(KEEP_ALIVE))
            except (CallFailed, TimeoutError, StoreUnavailable) as error:
                log.info("lease is not answered", extra={"lease": self.lease, "error": str(error)})
                if line is not None:
                    self._channel.leave(line)
                self._tell(self._state.missed(self._clock.monotonic()))
                await self._clock.sleep(_PAUSE_S)

    async def _keep_on(
        self, call: grpc.aio.StreamStreamCall[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
    ) -> None:
        """Returns when the lease is gone; raises when this stream is of no more use."""
        request = pb.LeaseKeepAliveRequest(ID=self.lease)
        try:
            while True:
                part_s = self._state.ttl_s / 3  # time for a second try on another server
                sent_at = self._clock.monotonic()
                async with asyncio.timeout(part_s):
                    await answer(call.write(request))
                    response = await answer(call.read())
                if not isinstance(response, pb.LeaseKeepAliveResponse):
                    raise CallFailed(await call.code(), await call.details() or "")
                self._tell(self._state.answered(sent_at, response.TTL))
                if self.is_lost:
                    return
                await self._clock.sleep(part_s)
        finally:
            call.cancel()

    def _tell(self, events: list[SessionEvent]) -> None:
        for event in events:
            self.tell(event)


async def grant(channel: EtcdChannel, clock: Clock, ttl_ms: int) -> EtcdSession:
    """A new session, kept alive from now on. A grant whose answer is lost runs out by itself, so it is repeated."""
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise BadRequest(f"a session lives between 1 ms and {TTL_MS_MAX} ms, not {ttl_ms}")
    asked_at = clock.monotonic()
    response = await channel.repeat(GRANT, pb.LeaseGrantRequest(TTL=-(-max(ttl_ms, TTL_MS_MIN) // 1000)))
    session = EtcdSession(channel, clock, response.ID, LeaseClock(response.TTL, asked_at + response.TTL))
    session.start()
    return session
