"""Who leads which shard, kept current, and how often a call is repeated. Knows no keys' values.

One task follows the assignments that any server streams to its clients: from the seeds of the URL at first, from any
known leader later. Everybody else asks for the leader of a shard each time it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import count
from typing import TypeVar

from google.protobuf.message import Message

from anabranch.metadata.grpc_calls import CallFailed
from anabranch.metadata.interface import StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, as_error, is_worth_repeating
from anabranch.metadata.oxia.server_channel import ASSIGNMENTS, ServerChannel
from anabranch.metadata.oxia.shards import Shard, ShardMap, read_assignments
from anabranch.runtime.clock import Clock
from anabranch.runtime.tasks import TaskOwner

ATTEMPT_S_MIN = 0.5
FIRST_WORD_S = 3.0  # for a server's first word on its assignments; then another one is asked

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Pauses:
    """Growing waits between attempts: 20 ms, 40 ms … half a second."""

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
        reach: Callable[[str], str] = lambda address: address,
    ) -> None:
        """`reach` turns an address that servers tell into the one to connect to."""
        self._reach = reach
        self.namespace = namespace
        self.clock = clock
        self.deadline_s = deadline_s
        self._seeds = seeds
        self._peers: dict[str, ServerChannel] = {}
        self._shards: ShardMap | None = None
        self._tasks = TaskOwner("oxia-cluster")
        self._listeners: list[Callable[[ShardMap], None]] = []

    async def open(self) -> None:
        """Raises what keeps us out: StoreUnavailable, NamespaceMissing, AnswerUnreadable."""
        self._tasks = TaskOwner("oxia-cluster")  # those of an earlier life have ended
        first = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._follow(first), "assignments")
        await self.within(self.deadline_s, asyncio.shield(first), "no Oxia server told its shards")

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
            raise StoreUnavailable(f"Oxia shard {shard_id} has no leader now")
        return self._peer(shard.leader)

    async def repeat(self, until: float, attempt: Callable[[], Awaitable[T]], doing: str) -> T:
        """Attempt until it works or the time is over; only for what may be done twice."""
        pauses = Pauses(self.clock)
        last: Exception | None = None
        try:
            async with asyncio.timeout(max(until - self.clock.monotonic(), 0)):
                while True:
                    try:
                        return await self._attempt(attempt, until)
                    except CallFailed as failed:
                        if not is_worth_repeating(failed):
                            raise as_error(failed, doing) from failed
                        last = failed
                    except AnswerUnreadable:
                        raise
                    except StoreUnavailable as error:
                        last = error
                    await pauses.wait()
        except TimeoutError as error:
            raise StoreUnavailable(f"{doing}: {last or 'no answer in time'}") from (last or error)

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], until: float) -> T:
        """Half of the time that is left: a server that hangs may have lost its shard to one that does not."""
        seconds = max((until - self.clock.monotonic()) / 2, ATTEMPT_S_MIN)
        return await self.within(seconds, attempt(), "no answer")

    async def ask(self, shard_id: int, method: str, request: Message, kind: type[M], until: float) -> M:
        """A unary call to the shard's leader; only for what may be done twice."""
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
            self._peers[address] = ServerChannel(address, self._reach(address))
        return self._peers[address]

    async def _follow(self, first: asyncio.Future[None]) -> None:
        pauses = Pauses(self.clock)
        for turn in count():
            addresses = self._addresses()
            try:
                async with aclosing(self._told_by(self._peer(addresses[turn % len(addresses)]))) as maps:
                    async for shards in maps:
                        self._changed(shards)
                        pauses.reset()
                        if not first.done():
                            first.set_result(None)
            except CallFailed as failed:
                if not is_worth_repeating(failed) and not first.done():
                    first.set_exception(as_error(failed, "connecting"))
                    return
                log.info("shard assignments interrupted", extra={"reason": str(failed)})
            except AnswerUnreadable as error:
                if not first.done():
                    first.set_exception(error)
                    return
                log.warning("shard assignments are not usable", extra={"reason": str(error)})
            except StoreUnavailable as error:
                log.info("shard assignments are asked for elsewhere", extra={"reason": str(error)})
            await pauses.wait()

    async def _told_by(self, peer: ServerChannel) -> AsyncGenerator[ShardMap, None]:
        request = wire.AssignmentsRequest(namespace=self.namespace)
        async with aclosing(peer.flow(ASSIGNMENTS, request, wire.Assignments)) as answers:
            patience_s = min(FIRST_WORD_S, self.deadline_s / 3)  # another seed shall have its turn
            answer = await self.within(patience_s, anext(answers, None), f"{peer.address} says nothing")
            while answer is not None:
                yield read_assignments(answer, self.namespace)
                answer = await anext(answers, None)

    def _addresses(self) -> list[str]:
        known = [shard.leader for shard in self._shards.shards if shard.leader] if self._shards else []
        return list(dict.fromkeys([*self._seeds, *known]))

    def _changed(self, shards: ShardMap) -> None:
        self._shards = shards
        current = set(self._addresses())
        for address in [address for address in self._peers if address not in current]:
            self._tasks.spawn(self._peers.pop(address).close(), "close")
        for listener in self._listeners:
            listener(shards)
