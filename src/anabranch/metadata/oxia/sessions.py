"""One session of the port: one Oxia session on every shard on which it has keys.

Oxia has sessions per shard. The first is made when the session is opened, the others when their first key is written.
Each is kept alive by its own task. The whole session is lost when any part is; its keys on the other shards are then
deleted too.
"""

from __future__ import annotations

import asyncio

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import SessionEvent, SessionLost, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import Refusal, refusal
from anabranch.metadata.oxia.server_channel import CLOSE_SESSION, CREATE_SESSION, KEEP_ALIVE
from anabranch.metadata.oxia.shard_leaders import Cluster
from anabranch.metadata.session_base import SessionBase
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

TTL_MS_MIN, TTL_MS_MAX = 2_000, 300_000  # the server refuses others
IDENTITY = "anabranch"
KEEP_ALIVES_PER_TTL = 5
KEEP_ALIVE_S_MAX = 2.0

log = get_logger(__name__)


def granted_ms(ttl_ms: int) -> int:
    return min(max(ttl_ms, TTL_MS_MIN), TTL_MS_MAX)


class ShardSessions:
    """State of the parts of one session. Pure: times in, events out."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._confirmed: dict[int, float] = {}  # shard: send time of its latest answered keep-alive
        self._silent: set[int] = set()

    def on_answer(self, shard: int, sent_at: float) -> SessionEvent | None:
        self._confirmed[shard] = max(sent_at, self._confirmed.get(shard, sent_at))
        if shard in self._silent:
            self._silent.discard(shard)
            return None if self._silent else SessionEvent.RECONNECTED
        return None

    def on_failure(self, shard: int) -> SessionEvent | None:
        first = not self._silent
        self._silent.add(shard)
        return SessionEvent.DISCONNECTED if first else None

    def valid_until(self, now: float) -> float:
        """The part with the oldest answer decides. Without parts nothing can be lost."""
        return min(self._confirmed.values(), default=now) + self._ttl_s


class OxiaSession(SessionBase):
    def __init__(self, cluster: Cluster, ttl_ms: int, background: TaskOwner) -> None:
        super().__init__(granted_ms(ttl_ms))
        self._cluster = cluster
        self._background = background
        self._shard_sessions = ShardSessions(self.ttl_ms / 1000)
        self._ids: dict[int, int] = {}
        self._creating: dict[int, asyncio.Lock] = {}
        self._tasks = TaskOwner("oxia-session")
        self._ended_at = 0.0

    @property
    def valid_until(self) -> float:
        return self._ended_at if self.is_lost else self._shard_sessions.valid_until(self._cluster.clock.monotonic())

    @property
    def parts(self) -> dict[int, int]:
        """Oxia's session id by shard."""
        return dict(self._ids)

    async def part(self, shard_id: int, until: float) -> int:
        """The Oxia session on that shard, created if needed."""
        async with self._creating.setdefault(shard_id, asyncio.Lock()):
            if self.is_lost:
                raise SessionLost("the session has ended")
            if shard_id not in self._ids:
                request = wire.CreateSessionRequest(shard=shard_id, timeout_ms=self.ttl_ms, client_identity=IDENTITY)
                sent_at = self._cluster.clock.monotonic()
                # a lost answer leaves a session without keys, which expires
                made = await self._cluster.ask(shard_id, CREATE_SESSION, request, wire.CreateSessionResponse, until)
                if self.is_lost:
                    raise SessionLost("the session has ended")
                self._ids[shard_id] = made.session_id
                self._notify_if(self._shard_sessions.on_answer(shard_id, sent_at))
                self._tasks.spawn(self._keep(shard_id, made.session_id), f"keep-{shard_id}")
            return self._ids[shard_id]

    def shards_changed(self, ids: list[int]) -> None:
        """The sessions of a removed shard have ended."""
        if any(shard not in ids for shard in self._ids):
            self.end()

    def end(self) -> None:
        """The server ended a part, so the whole session has ended."""
        if not self._mark_lost():
            return
        for shard, session_id in self._ids.items():
            # so that the other keys do not exist for a whole timeout longer
            self._background.spawn(self._try_close_part(shard, session_id), "close-part")
        self._tasks.cancel()  # last, because the caller may be one of them

    async def close(self) -> None:
        """Its keys are deleted when this returns; raises StoreUnavailable if that was not confirmed."""
        if not self._mark_lost():
            return
        await self._tasks.close()
        until = self._cluster.deadline()
        parts = [self._close_part(shard, session_id, until) for shard, session_id in self._ids.items()]
        for result in await asyncio.gather(*parts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _mark_lost(self) -> bool:
        """False if it was lost already."""
        if self.is_lost:
            return False
        self._ended_at = min(self.valid_until, self._cluster.clock.monotonic())
        self.notify(SessionEvent.LOST)
        return True

    async def _keep(self, shard: int, session_id: int) -> None:
        interval_s = min(self.ttl_ms / 1000 / KEEP_ALIVES_PER_TTL, KEEP_ALIVE_S_MAX)
        request = wire.SessionRequest(shard=shard, session_id=session_id)
        clock = self._cluster.clock
        while True:
            await clock.sleep(interval_s)
            sent_at = clock.monotonic()
            try:
                async with asyncio.timeout(2 * interval_s):
                    await self._cluster.leader(shard).ask(KEEP_ALIVE, request, wire.Nothing)
            except CallFailed as failed:
                if refusal(failed) is Refusal.SESSION_UNKNOWN:
                    return self.end()
                self._notify_if(self._shard_sessions.on_failure(shard))
            except (StoreUnavailable, TimeoutError):
                self._notify_if(self._shard_sessions.on_failure(shard))
            else:
                self._notify_if(self._shard_sessions.on_answer(shard, sent_at))

    async def _close_part(self, shard: int, session_id: int, until: float) -> None:
        request = wire.SessionRequest(shard=shard, session_id=session_id)

        async def attempt() -> None:
            try:
                await self._cluster.leader(shard).ask(CLOSE_SESSION, request, wire.Nothing)
            except CallFailed as failed:
                if refusal(failed) is not Refusal.SESSION_UNKNOWN:
                    raise

        await self._cluster.repeat(until, attempt, "closing a session")

    async def _try_close_part(self, shard: int, session_id: int) -> None:
        try:
            await self._close_part(shard, session_id, self._cluster.deadline())
        except StoreUnavailable as error:
            log.info(
                "Oxia session not closed on one shard; it will expire", extra={"shard": shard, "reason": str(error)}
            )

    def _notify_if(self, event: SessionEvent | None) -> None:
        if event is not None:
            self.notify(event)
