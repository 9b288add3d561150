"""All writes to one shard: one stream of batches, answered in order. Must not know what a write is for.

    submit ──► queue ──► batch (≤ 1000 writes, ≤ 128 kB, each key once) ──► stream ──► answers, first in first out

Several batches are under way at once; while they are, the next one gathers. A batch names a key once because the server
does all puts of a batch before its deletes, and tells watchers only the last change of a key.

When a stream ends, what was on it has an unknown outcome and is never sent again, unless the server cannot have looked
at it. We never half-close: the server would drop the answers that are still due.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from anabranch.metadata.grpc_calls import CallFailed, answer
from anabranch.metadata.interface import OutcomeUnknown, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, is_surely_undone
from anabranch.metadata.oxia.server_channel import ServerChannel, WriteCall, parse
from anabranch.metadata.oxia.shard_leaders import Cluster, Pauses
from anabranch.runtime.tasks import TaskOwner

BATCH_WRITES_MAX = 1000
BATCH_BYTES_MAX = 128 * 1024
UNDER_WAY_MAX = 16
QUEUED_MAX = 10_000  # further writers wait for a place
DRAIN_S = 2.0

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Group:
    """Writes that go out together and are answered together; no key twice."""

    puts: Sequence[wire.Put]
    deletes: Sequence[wire.Delete]
    future: asyncio.Future[wire.WriteResponse]
    is_sent: bool = False
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = sum(len(one.key) + len(one.value) + 16 for one in self.puts)
        self.bytes += sum(len(one.key) + 16 for one in self.deletes)

    @property
    def writes(self) -> int:
        return len(self.puts) + len(self.deletes)

    def keys(self) -> set[str]:
        return {one.key for one in self.puts} | {one.key for one in self.deletes}


def take_batch(queue: deque[Group]) -> list[Group]:
    """Take groups from the front that fit into one request. Nothing is overtaken; who gave up is left out."""
    taken: list[Group] = []
    keys: set[str] = set()
    writes = size = 0
    while queue:
        group = queue[0]
        if group.future.done():
            queue.popleft()
            continue
        full = writes + group.writes > BATCH_WRITES_MAX or size + group.bytes > BATCH_BYTES_MAX
        if taken and (full or not keys.isdisjoint(group.keys())):
            break
        taken.append(queue.popleft())
        keys |= group.keys()
        writes += group.writes
        size += group.bytes
    return taken


def share_out(batch: list[Group], response: wire.WriteResponse) -> list[wire.WriteResponse]:
    """Each group's part of the answer to a batch."""
    puts, deletes = sum(len(group.puts) for group in batch), sum(len(group.deletes) for group in batch)
    if (len(response.puts), len(response.deletes)) != (puts, deletes):
        raise AnswerUnreadable(f"{len(response.puts)}+{len(response.deletes)} answers to {puts}+{deletes} writes")
    if len(batch) == 1:
        return [response]
    parts = []
    put = delete = 0
    for group in batch:
        put_end, delete_end = put + len(group.puts), delete + len(group.deletes)
        parts.append(wire.WriteResponse(puts=response.puts[put:put_end], deletes=response.deletes[delete:delete_end]))
        put, delete = put_end, delete_end
    return parts


class ShardWriter:
    def __init__(self, shard_id: int, cluster: Cluster) -> None:
        self.shard_id = shard_id
        self._cluster = cluster
        self._queue: deque[Group] = deque()
        self._under_way: deque[list[Group]] = deque()
        self._news = asyncio.Event()  # the queue, what is under way or the leader changed
        self._stalled = False
        self._heard_at = 0.0  # when the stream last gave a sign of life, or was asked for one after a silence
        self._places = asyncio.Semaphore(QUEUED_MAX)
        self._tasks = TaskOwner(f"oxia-writer-{shard_id}")
        self._reason: Exception | None = None

    def open(self) -> None:
        self._tasks.spawn(self._run(), "run")

    async def close(self) -> None:
        """Let what is queued finish for a while; the rest ends as unknown or unsent."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._queue or self._under_way:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("writes were given up at close", extra={"shard": self.shard_id})
        await self._tasks.close()
        for group in self._queue:
            if not group.future.done():
                group.future.set_exception(StoreUnavailable("the metadata store is not open"))
        self._queue.clear()

    def leader_changed(self) -> None:
        self._news.set()

    async def write(self, puts: Sequence[wire.Put], deletes: Sequence[wire.Delete], until: float) -> wire.WriteResponse:
        """Raises StoreUnavailable when surely nothing was written, OutcomeUnknown when it may have been."""
        group = Group(puts, deletes, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(max(until - self._cluster.clock.monotonic(), 0)), self._places:
                self._queue.append(group)
                self._news.set()
                return await group.future
        except TimeoutError as error:
            if group.is_sent:
                self._suspect()
                raise OutcomeUnknown(f"shard {self.shard_id} did not confirm the write in time") from error
            raise StoreUnavailable(
                f"shard {self.shard_id} could not be written to in time: {self._reason or 'it is busy'}"
            ) from (self._reason or error)

    def _suspect(self) -> None:
        """A write was not confirmed in time. If nothing was for a while, this stream will not come back to life."""
        clock = self._cluster.clock
        if clock.monotonic() - self._heard_at >= self._cluster.deadline_s / 2:
            self._stalled = True
            self._news.set()

    async def _run(self) -> None:
        pauses = Pauses(self._cluster.clock)
        while True:
            while not self._is_wanted():
                self._news.clear()
                await self._news.wait()
            try:
                peer = self._cluster.leader(self.shard_id)
                await self._serve(peer, pauses)
            except CallFailed as failed:
                self._reason = failed
            except (StoreUnavailable, AnswerUnreadable) as error:
                self._reason = error
            else:
                continue
            await pauses.wait()

    def _is_wanted(self) -> bool:
        while self._queue and self._queue[0].future.done():
            self._queue.popleft()
            self._news.set()
        return bool(self._queue)

    async def _serve(self, peer: ServerChannel, pauses: Pauses) -> None:
        """One stream from its opening to its end. Returns when the leader moved, raises when it broke."""
        metadata = (("namespace", self._cluster.namespace), ("shard-id", str(self.shard_id)))
        call = await self._cluster.within(
            self._cluster.deadline_s, peer.open_writes(metadata), f"{peer.address} did not answer"
        )
        self._stalled = False
        answered = [0]
        halves = (
            asyncio.ensure_future(self._send(call, peer)),
            asyncio.ensure_future(self._receive(call, answered, pauses)),
        )
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            await self._end(halves, call, peer, answered[0])
        finally:
            for half in halves:
                half.cancel()
            call.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._give_up()

    async def _end(
        self,
        halves: tuple[asyncio.Future[None], asyncio.Future[None]],
        call: WriteCall,
        peer: ServerChannel,
        answered: int,
    ) -> None:
        """Raise why it ended; what the server cannot have looked at goes back to the queue."""
        for half in halves:
            error = half.exception() if half.done() else None
            if error is not None and not isinstance(error, CallFailed):
                self._reason = error if isinstance(error, Exception) else None
                raise error
        if halves[0].done() and halves[0].exception() is None:
            return
        failed = await self._cluster.within(DRAIN_S, peer.failure_of(call), "the stream did not end")
        self._reason = failed
        if answered == 0 and is_surely_undone(failed):
            for batch in reversed(self._under_way):
                for group in reversed(batch):
                    group.is_sent = False
                    self._queue.appendleft(group)
            self._under_way.clear()
        raise failed

    async def _send(self, call: WriteCall, peer: ServerChannel) -> None:
        while True:
            while not (self._queue and len(self._under_way) < UNDER_WAY_MAX) and not self._must_leave(peer):
                self._news.clear()
                await self._news.wait()
            if self._must_leave(peer):
                return await self._drain()
            batch = take_batch(self._queue)
            if not batch:
                continue
            request = wire.WriteRequest(shard=self.shard_id)
            for group in batch:
                request.puts.extend(group.puts)
                request.deletes.extend(group.deletes)
                group.is_sent = True
            if not self._under_way:
                self._heard_at = self._cluster.clock.monotonic()
            self._under_way.append(batch)
            await answer(call.write(request.SerializeToString()))

    def _must_leave(self, peer: ServerChannel) -> bool:
        shard = self._cluster.shards.find(self.shard_id)
        return self._stalled or (shard is not None and bool(shard.leader) and shard.leader != peer.address)

    async def _drain(self) -> None:
        """The leader moved or does not answer: what is under way has a last moment."""
        try:
            async with asyncio.timeout(0 if self._stalled else DRAIN_S):
                while self._under_way:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self._reason = StoreUnavailable("the leader left or did not answer")

    async def _receive(self, call: WriteCall, answered: list[int], pauses: Pauses) -> None:
        while isinstance(data := await answer(call.read()), bytes):
            response = parse(wire.WriteResponse, data)
            if not self._under_way:
                raise AnswerUnreadable("an answer to a write that was not made")
            parts = share_out(self._under_way[0], response)
            for group, part in zip(self._under_way.popleft(), parts, strict=True):
                if not group.future.done():
                    group.future.set_result(part)
            answered[0] += 1
            self._heard_at = self._cluster.clock.monotonic()
            pauses.reset()
            self._news.set()
        raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the server ended the stream")

    def _give_up(self) -> None:
        """Nobody knows what became of the writes that are under way."""
        for batch in self._under_way:
            for group in batch:
                if not group.future.done():
                    lost = OutcomeUnknown(f"the connection to shard {self.shard_id} was lost: {self._reason}")
                    group.future.set_exception(lost)
        self._under_way.clear()
        self._news.set()
