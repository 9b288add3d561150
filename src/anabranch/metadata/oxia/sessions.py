"""One session of the port = one Oxia session on every shard that it has keys on. Knows nothing of values.

Oxia has sessions per shard. The first is made when the session is opened (so that somebody watches over it from the
start), the others when the first key of theirs is written. Each is kept alive by its own task; the whole is lost when
any part is: its keys on the other shards are then given up too.
"""

from __future__ import annotations

import asyncio
import logging

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import SessionEvent, SessionLost, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import Refusal, refusal
from anabranch.metadata.oxia.server_channel import CLOSE_SESSION, CREATE_SESSION, KEEP_ALIVE
from anabranch.metadata.oxia.shard_leaders import Cluster
from anabranch.metadata.session_base import SessionLife
from anabranch.runtime.tasks import TaskOwner

TTL_MS_MIN, TTL_MS_MAX = 2_000, 300_000  # the server refuses others
IDENTITY = "anabranch"
SIGNS_PER_TTL = 5
SIGN_S_MAX = 2.0

log = logging.getLogger(__name__)


def granted_ms(ttl_ms: int) -> int:
    return min(max(ttl_ms, TTL_MS_MIN), TTL_MS_MAX)


class ShardLives:
    """What is known of the parts of one session. Pure: times come in, events go out."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._confirmed: dict[int, float] = {}  # shard: when its last answered sign of life was sent
        self._silent: set[int] = set()

    def answered(self, shard: int, sent_at: float) -> SessionEvent | None:
        self._confirmed[shard] = max(sent_at, self._confirmed.get(shard, sent_at))
        if shard in self._silent:
            self._silent.discard(shard)
            return None if self._silent else SessionEvent.RECONNECTED
        return None

    def failed(self, shard: int) -> SessionEvent | None:
        first = not self._silent
        self._silent.add(shard)
        return SessionEvent.DISCONNECTED if first else None

    def valid_until(self, now: float) -> float:
        """Conservative: the part that was heard of longest ago decides. Without parts nothing can be lost."""
        return min(self._confirmed.values(), default=now) + self._ttl_s


class OxiaSession(SessionLife):
    def __init__(self, cluster: Cluster, ttl_ms: int, background: TaskOwner) -> None:
        super().__init__(granted_ms(ttl_ms))
        self._cluster = cluster
        self._background = background
        self._lives = ShardLives(self.ttl_ms / 1000)
        self._ids: dict[int, int] = {}
        self._creating: dict[int, asyncio.Lock] = {}
        self._tasks = TaskOwner("oxia-session")
        self._ended_at = 0.0

    @property
    def valid_until(self) -> float:
        return self._ended_at if self.is_lost else self._lives.valid_until(self._cluster.clock.monotonic())

    @property
    def parts(self) -> dict[int, int]:
        """Shard: Oxia's session there."""
        return dict(self._ids)

    async def part(self, shard_id: int, until: float) -> int:
        """The Oxia session on that shard, made if it is not there yet."""
        async with self._creating.setdefault(shard_id, asyncio.Lock()):
            if self.is_lost:
                raise SessionLost("the session has ended")
            if shard_id not in self._ids:
                request = wire.CreateSessionRequest(shard=shard_id, timeout_ms=self.ttl_ms, client_identity=IDENTITY)
                sent_at = self._cluster.clock.monotonic()
                # an answer that is lost leaves a session without keys behind, which expires
                made = await self._cluster.ask(shard_id, CREATE_SESSION, request, wire.CreateSessionResponse, until)
                if self.is_lost:
                    raise SessionLost("the session has ended")
                self._ids[shard_id] = made.session_id
                self._heard(self._lives.answered(shard_id, sent_at))
                self._tasks.spawn(self._keep(shard_id, made.session_id), f"keep-{shard_id}")
            return self._ids[shard_id]

    def shards_changed(self, ids: list[int]) -> None:
        """A shard that is gone took its sessions with it."""
        if any(shard not in ids for shard in self._ids):
            self.end()

    def end(self) -> None:
        """The store ended a part of it, so all of it has ended."""
        if not self._mark_lost():
            return
        for shard, session_id in self._ids.items():
            # a courtesy: the other keys should not outlive these by a whole timeout
            self._background.spawn(self._take_leave(shard, session_id), "goodbye")
        self._tasks.cancel()  # last: it may be one of them that called

    async def close(self) -> None:
        """Its keys are gone when this returns; raises StoreUnavailable when that could not be confirmed."""
        if not self._mark_lost():
            return
        await self._tasks.close()
        until = self._cluster.deadline()
        parts = [self._close_part(shard, session_id, until) for shard, session_id in self._ids.items()]
        for result in await asyncio.gather(*parts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _mark_lost(self) -> bool:
        """False if it was already."""
        if self.is_lost:
            return False
        self._ended_at = min(self.valid_until, self._cluster.clock.monotonic())
        self.tell(SessionEvent.LOST)
        return True

    async def _keep(self, shard: int, session_id: int) -> None:
        every_s = min(self.ttl_ms / 1000 / SIGNS_PER_TTL, SIGN_S_MAX)
        request = wire.SessionRequest(shard=shard, session_id=session_id)
        clock = self._cluster.clock
        while True:
            await clock.sleep(every_s)
            sent_at = clock.monotonic()
            try:
                async with asyncio.timeout(2 * every_s):
                    await self._cluster.leader(shard).ask(KEEP_ALIVE, request, wire.Nothing)
            except CallFailed as failed:
                if refusal(failed) is Refusal.SESSION_UNKNOWN:
                    return self.end()
                self._heard(self._lives.failed(shard))
            except (StoreUnavailable, TimeoutError):
                self._heard(self._lives.failed(shard))
            else:
                self._heard(self._lives.answered(shard, sent_at))

    async def _close_part(self, shard: int, session_id: int, until: float) -> None:
        request = wire.SessionRequest(shard=shard, session_id=session_id)

        async def attempt() -> None:
            try:
                await self._cluster.leader(shard).ask(CLOSE_SESSION, request, wire.Nothing)
            except CallFailed as failed:
                if refusal(failed) is not Refusal.SESSION_UNKNOWN:
                    raise

        await self._cluster.repeat(until, attempt, "closing a session")

    async def _take_leave(self, shard: int, session_id: int) -> None:
        try:
            await self._close_part(shard, session_id, self._cluster.deadline())
        except StoreUnavailable as error:
            log.info("a part of a lost session is left to expire", extra={"shard": shard, "reason": str(error)})

    def _heard(self, event: SessionEvent | None) -> None:
        if event is not None:
            self.tell(event)
