"""The leader of each shard, kept current, and the repetition of calls.

One task follows the assignments that every server streams to its clients: from the seeds of the URL at first, later
from any known leader. Other parts look up the leader of a shard each time they need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import count
from typing import TypeVar

from google.protobuf.message import Message

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, is_retryable, port_error
from anabranch.metadata.oxia.server_channel import ASSIGNMENTS, ServerChannel
from anabranch.metadata.oxia.shards import Shard, ShardMap, read_assignments
from anabranch.metadata.store_security import NO_SECURITY, StoreSecurity
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

ATTEMPT_S_MIN = 0.5
FIRST_ANSWER_S = 3.0  # for a server's first assignments; then another server is tried

log = get_logger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Backoff:
    """Growing pauses between attempts: 20 ms, 40 ms … half a second."""

    FIRST_S, LAST_S = 0.02, 0.5

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s = self.FIRST_S

    async def wait(self) -> None:
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self.LAST_S)
        await self._clock.sleep(pause_s)

    def reset(self) -> None:
        self._next_s = self.FIRST_S


class Cluster:
    def __init__(
        self,
        seeds: tuple[str, ...],
        namespace: str,
        clock: Clock,
        deadline_s: float,
        connect_address: Callable[[str], str] = lambda address: address,
        security: StoreSecurity = NO_SECURITY,
    ) -> None:
        """`connect_address` maps an address in the assignments to the one to connect to."""
        self._security = security
        self._connect_address = connect_address
        self.namespace = namespace
        self.clock = clock
        self.deadline_s = deadline_s
        self._seeds = seeds
        self._peers: dict[str, ServerChannel] = {}
        self._shards: ShardMap | None = None
        self._tasks = TaskOwner("oxia-cluster")
        self._listeners: list[Callable[[ShardMap], None]] = []

    async def open(self) -> None:
        """Raises StoreUnavailable, NotAllowed, NamespaceMissing or AnswerUnreadable."""
        self._security.check_files()
        self._tasks = TaskOwner("oxia-cluster")  # a closed one cannot be used again
        first = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._follow(first), "assignments")
        await self.within(self.deadline_s, asyncio.shield(first), "no Oxia server sent its shard assignments")

    async def close(self) -> None:
        await self._tasks.close()
        self._shards = None
        peers, self._peers = list(self._peers.values()), {}
        await asyncio.gather(*(peer.close() for peer in peers))

    @property
    def shards(self) -> ShardMap:
        if self._shards is None:
            raise StoreUnavailable("the metadata store is not open")
        return self._shards

    def on_change(self, listener: Callable[[ShardMap], None]) -> None:
        self._listeners.append(listener)

    def leader(self, shard_id: int) -> ServerChannel:
        shard: Shard | None = self.shards.find(shard_id)
        if shard is None or not shard.leader:
            raise StoreUnavailable(f"Oxia shard {shard_id} has no leader at present")
        return self._peer(shard.leader)

    async def repeat(self, until: float, attempt: Callable[[], Awaitable[T]], doing: str) -> T:
        """Attempt until it succeeds or the deadline passes; only for idempotent calls."""
        backoff = Backoff(self.clock)
        last: Exception | None = None
        try:
            async with asyncio.timeout(max(until - self.clock.monotonic(), 0)):
                while True:
                    try:
                        return await self._attempt(attempt, until)
                    except CallFailed as failed:
                        if not is_retryable(failed):
                            raise port_error(failed, doing) from failed
                        last = failed
                    except AnswerUnreadable:
                        raise
                    except StoreUnavailable as error:
                        last = error
                    await backoff.wait()
        except TimeoutError as error:
            raise StoreUnavailable(f"{doing}: {last or 'no answer in time'}") from (last or error)

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], until: float) -> T:
        """One attempt with half of the remaining time: a hanging server may have lost its shard to another."""
        seconds = max((until - self.clock.monotonic()) / 2, ATTEMPT_S_MIN)
        return await self.within(seconds, attempt(), "no answer")

    async def ask(self, shard_id: int, method: str, request: Message, kind: type[M], until: float) -> M:
        """A unary call to the shard's leader; only for idempotent calls."""
        return await self.repeat(until, lambda: self.leader(shard_id).ask(method, request, kind), method)

    async def within(self, seconds: float, work: Awaitable[T], doing: str) -> T:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                return await work
        except TimeoutError as error:
            raise StoreUnavailable(f"{doing} within {seconds:.1f} s") from error

    def deadline(self) -> float:
        return self.clock.monotonic() + self.deadline_s

    def _peer(self, address: str) -> ServerChannel:
        if address not in self._peers:
            self._peers[address] = ServerChannel(address, self._connect_address(address), self._security)
        return self._peers[address]

    async def _follow(self, first: asyncio.Future[None]) -> None:
        backoff = Backoff(self.clock)
        tls_failures = 0
        for attempt in count():
            addresses = self._addresses()
            try:
                async with aclosing(self._assignments_of(self._peer(addresses[attempt % len(addresses)]))) as maps:
                    async for shards in maps:
                        self._on_assignments(shards)
                        backoff.reset()
                        if not first.done():
                            first.set_result(None)
            except CallFailed as failed:
                tls_failures = tls_failures + 1 if failed.is_tls_failure else 0
                if not first.done() and (not is_retryable(failed) or tls_failures >= len(addresses)):
                    first.set_exception(port_error(failed, "connecting"))
                    return
                log.info("Oxia shard assignments interrupted; reconnecting", extra={"reason": str(failed)})
            except AnswerUnreadable as error:
                if not first.done():
                    first.set_exception(error)
                    return
                log.warning("Oxia shard assignments not usable; reconnecting", extra={"reason": str(error)})
            except StoreUnavailable as error:
                log.info("Oxia shard assignments not received; trying another server", extra={"reason": str(error)})
            await backoff.wait()

    async def _assignments_of(self, peer: ServerChannel) -> AsyncGenerator[ShardMap, None]:
        request = wire.AssignmentsRequest(namespace=self.namespace)
        async with aclosing(peer.stream(ASSIGNMENTS, request, wire.Assignments)) as answers:
            wait_s = min(FIRST_ANSWER_S, self.deadline_s / 3)  # leave time for other seeds
            answer = await self.within(wait_s, anext(answers, None), f"{peer.address} sent no assignments")
            while answer is not None:
                yield read_assignments(answer, self.namespace)
                answer = await anext(answers, None)

    def _addresses(self) -> list[str]:
        known = [shard.leader for shard in self._shards.shards if shard.leader] if self._shards else []
        return list(dict.fromkeys([*self._seeds, *known]))

    def _on_assignments(self, shards: ShardMap) -> None:
        self._shards = shards
        current = set(self._addresses())
        for address in [address for address in self._peers if address not in current]:
            self._tasks.spawn(self._peers.pop(address).close(), "close")
        for listener in self._listeners:
            listener(shards)
