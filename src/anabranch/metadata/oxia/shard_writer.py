"""All writes to one shard: one stream of batches, answered in order.

    write ──► queue ──► batch (≤ 1000 writes, ≤ 128 kB, each key once) ──► stream ──► answers, first in first out

Several batches are pending at once; meanwhile the next one is collected. A batch has each key once, because the server
applies all puts of a batch before its deletes and notifies watches only of the last change of a key.

When a stream ends, its pending writes have an unknown outcome and are not repeated, unless the server cannot have
executed them. The stream is never half-closed, because the server would drop the pending answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from anabranch.metadata.grpc_calls import CallFailed, answer
from anabranch.metadata.interface import OutcomeUnknown, StoreUnavailable
from anabranch.metadata.oxia import oxia_pb2 as wire
from anabranch.metadata.oxia.errors import AnswerUnreadable, was_not_executed
from anabranch.metadata.oxia.server_channel import ServerChannel, WriteCall, parse
from anabranch.metadata.oxia.shard_leaders import Backoff, Cluster
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

BATCH_WRITES_MAX = 1000
BATCH_BYTES_MAX = 128 * 1024
PENDING_BATCHES_MAX = 16
QUEUED_MAX = 10_000  # further writers wait
DRAIN_S = 2.0

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Group:
    """Writes that are sent and answered together; no key occurs twice."""

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
    """Take groups from the front that fit into one request, in order, without cancelled ones."""
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


def split_answer(batch: list[Group], response: wire.WriteResponse) -> list[wire.WriteResponse]:
    """The answer of a batch, split by group."""
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
        self._pending: deque[list[Group]] = deque()
        self._wakeup = asyncio.Event()  # the queue, the pending batches or the leader changed
        self._stalled = False
        self._answered_at = 0.0  # time of the last answer, or of the first write after a pause
        self._capacity = asyncio.Semaphore(QUEUED_MAX)
        self._tasks = TaskOwner(f"oxia-writer-{shard_id}")
        self._reason: Exception | None = None

    def open(self) -> None:
        self._tasks.spawn(self._run(), "run")

    async def close(self) -> None:
        """Give queued writes a short time to finish; the rest fails as unknown or not sent."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while self._queue or self._pending:
                    self._wakeup.clear()
                    await self._wakeup.wait()
        except TimeoutError:
            log.warning("Oxia writes not finished at close", extra={"shard": self.shard_id})
        await self._tasks.close()
        for group in self._queue:
            if not group.future.done():
                group.future.set_exception(StoreUnavailable("the metadata store is not open"))
        self._queue.clear()

    def leader_changed(self) -> None:
        self._wakeup.set()

    async def write(self, puts: Sequence[wire.Put], deletes: Sequence[wire.Delete], until: float) -> wire.WriteResponse:
        """Raises StoreUnavailable if nothing was written, OutcomeUnknown if it may have been."""
        group = Group(puts, deletes, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(max(until - self._cluster.clock.monotonic(), 0)), self._capacity:
                self._queue.append(group)
                self._wakeup.set()
                return await group.future
        except TimeoutError as error:
            if group.is_sent:
                self._check_stalled()
                raise OutcomeUnknown(f"shard {self.shard_id} did not confirm the write in time") from error
            raise StoreUnavailable(
                f"shard {self.shard_id} could not be written in time: {self._reason or 'it is busy'}"
            ) from (self._reason or error)

    def _check_stalled(self) -> None:
        """A write was not confirmed in time. If no answer arrived for a while, the stream counts as dead."""
        clock = self._cluster.clock
        if clock.monotonic() - self._answered_at >= self._cluster.deadline_s / 2:
            self._stalled = True
            self._wakeup.set()

    async def _run(self) -> None:
        backoff = Backoff(self._cluster.clock)
        while True:
            while not self._is_wanted():
                self._wakeup.clear()
                await self._wakeup.wait()
            try:
                peer = self._cluster.leader(self.shard_id)
                await self._serve(peer, backoff)
            except CallFailed as failed:
                self._reason = failed
            except (StoreUnavailable, AnswerUnreadable) as error:
                self._reason = error
            else:
                continue
            await backoff.wait()

    def _is_wanted(self) -> bool:
        while self._queue and self._queue[0].future.done():
            self._queue.popleft()
            self._wakeup.set()
        return bool(self._queue)

    async def _serve(self, peer: ServerChannel, backoff: Backoff) -> None:
        """One stream from its opening to its end. Returns if the leader moved, raises if it failed."""
        metadata = (("namespace", self._cluster.namespace), ("shard-id", str(self.shard_id)))
        call = await self._cluster.within(
            self._cluster.deadline_s, peer.open_writes(metadata), f"{peer.address} did not answer"
        )
        self._stalled = False
        answered = [0]
        halves = (
            asyncio.ensure_future(self._send(call, peer)),
            asyncio.ensure_future(self._receive(call, answered, backoff)),
        )
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            await self._end(halves, call, peer, answered[0])
        finally:
            for half in halves:
                half.cancel()
            call.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._fail_pending()

    async def _end(
        self,
        halves: tuple[asyncio.Future[None], asyncio.Future[None]],
        call: WriteCall,
        peer: ServerChannel,
        answered: int,
    ) -> None:
        """Raise why it ended; writes that the server cannot have executed go back to the queue."""
        for half in halves:
            error = half.exception() if half.done() else None
            if error is not None and not isinstance(error, CallFailed):
                self._reason = error if isinstance(error, Exception) else None
                raise error
        if halves[0].done() and halves[0].exception() is None:
            return
        failed = await self._cluster.within(DRAIN_S, peer.failure_of(call), "the stream did not end")
        self._reason = failed
        if answered == 0 and was_not_executed(failed):
            for batch in reversed(self._pending):
                for group in reversed(batch):
                    group.is_sent = False
                    self._queue.appendleft(group)
            self._pending.clear()
        raise failed

    async def _send(self, call: WriteCall, peer: ServerChannel) -> None:
        while True:
            while not (self._queue and len(self._pending) < PENDING_BATCHES_MAX) and not self._must_leave(peer):
                self._wakeup.clear()
                await self._wakeup.wait()
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
            if not self._pending:
                self._answered_at = self._cluster.clock.monotonic()
            self._pending.append(batch)
            await answer(call.write(request.SerializeToString()))

    def _must_leave(self, peer: ServerChannel) -> bool:
        shard = self._cluster.shards.find(self.shard_id)
        return self._stalled or (shard is not None and bool(shard.leader) and shard.leader != peer.address)

    async def _drain(self) -> None:
        """The leader moved or does not answer: wait briefly for pending answers."""
        try:
            async with asyncio.timeout(0 if self._stalled else DRAIN_S):
                while self._pending:
                    self._wakeup.clear()
                    await self._wakeup.wait()
        except TimeoutError:
            self._reason = StoreUnavailable("the shard leader moved or did not answer")

    async def _receive(self, call: WriteCall, answered: list[int], backoff: Backoff) -> None:
        while isinstance(data := await answer(call.read()), bytes):
            response = parse(wire.WriteResponse, data)
            if not self._pending:
                raise AnswerUnreadable("an answer without a pending write")
            parts = split_answer(self._pending[0], response)
            for group, part in zip(self._pending.popleft(), parts, strict=True):
                if not group.future.done():
                    group.future.set_result(part)
            answered[0] += 1
            self._answered_at = self._cluster.clock.monotonic()
            backoff.reset()
            self._wakeup.set()
        raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the server ended the stream")

    def _fail_pending(self) -> None:
        """Fail the pending writes with OutcomeUnknown."""
        for batch in self._pending:
            for group in batch:
                if not group.future.done():
                    lost = OutcomeUnknown(f"the connection to shard {self.shard_id} was lost: {self._reason}")
                    group.future.set_exception(lost)
        self._pending.clear()
        self._wakeup.set()
